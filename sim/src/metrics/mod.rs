// SPDX-License-Identifier: GPL-2.0-only
//! Figures from the stream of [`crate::observe`], as docs/metrics.md defines them.
