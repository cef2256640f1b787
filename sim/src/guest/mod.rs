// SPDX-License-Identifier: GPL-2.0-only
//! A guest's kernel: its scheduler, locks, interrupts, TLB shootdowns, ticks.
