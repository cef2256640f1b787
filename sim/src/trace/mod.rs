// SPDX-License-Identifier: GPL-2.0-only
//! Pictures from the stream of [`crate::observe`].
