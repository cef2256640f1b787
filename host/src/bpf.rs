// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler as libbpf-cargo generated it from `bpf/`, and the safe reading of what it shares with us.

#![allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
#![allow(non_camel_case_types, dead_code)]

include!(concat!(env!("OUT_DIR"), "/cohort.skel.rs"));
