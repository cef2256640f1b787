// SPDX-License-Identifier: GPL-2.0-only
//! The probe: what every vCPU of this host does and waits for, under any scheduler.
//!
//! `bpf/probe/` counts in the kernel; this loads it with as much of it as the kernel has hooks for, and reads it.

mod hooks;
mod load;
mod read;
mod told;

pub use load::{Probe, Storage};
pub use read::{monotonic_ns, slots, Reader};
pub use told::{told, Told};

/// What the probe's headers define; see build/headers.rs.
#[allow(dead_code)]
pub mod intf {
    include!(concat!(env!("OUT_DIR"), "/probe_intf.rs"));
}

/// The probe as libbpf-cargo generated it.
mod bpf {
    #![allow(
        clippy::all,
        clippy::pedantic,
        clippy::undocumented_unsafe_blocks,
        clippy::unwrap_used,
        non_camel_case_types,
        dead_code
    )]
    include!(concat!(env!("OUT_DIR"), "/probe.skel.rs"));
}

/// The look at what guests are told, likewise.
mod guest_bpf {
    #![allow(
        clippy::all,
        clippy::pedantic,
        clippy::undocumented_unsafe_blocks,
        clippy::unwrap_used,
        non_camel_case_types,
        dead_code
    )]
    include!(concat!(env!("OUT_DIR"), "/guest.skel.rs"));
}
