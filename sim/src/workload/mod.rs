// SPDX-License-Identifier: GPL-2.0-only
//! Workloads: small programs with distributions.
