# SPDX-License-Identifier: GPL-2.0-only
"""The lab: a stock kernel with KVM under an emulator, and real guests on it. See docs/lab.md."""
