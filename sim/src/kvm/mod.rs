// SPDX-License-Identifier: GPL-2.0-only
//! KVM: exits, pause-loop exiting, directed yield, halting, interrupts, paravirtual features.
