// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler as libbpf-cargo generated it from `bpf/`: one skeleton for the objects of all gangs, which differ in code alone (build/objects.rs).

#![allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
#![allow(non_camel_case_types, dead_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

use libbpf_rs::skel::SkelBuilder;
use libbpf_rs::OpenObject;

include!(concat!(env!("OUT_DIR"), "/cohort.skel.rs"));
include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// An ELF file is read in place.
#[repr(align(64))]
struct Aligned<const N: usize>([u8; N]);

thread_local! {
    /// Which of OBJECTS the skeleton opens: its generated code takes no argument for that.
    static OPENED: Cell<usize> = const { Cell::new(0) };
}

fn object() -> &'static [u8] {
    OBJECTS[OPENED.get()].1
}

/// Open the scheduler's object for `gang`, a number in policies.h.
pub fn open<'obj>(
    gang: usize,
    storage: &'obj mut MaybeUninit<OpenObject>,
) -> libbpf_rs::Result<OpenCohortSkel<'obj>> {
    OPENED.set(gang);
    CohortSkelBuilder::default().open(storage)
}
