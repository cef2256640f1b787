// SPDX-License-Identifier: GPL-2.0-only
//! The probe: what every vCPU of this host does and waits for, under any scheduler.
//!
//! `bpf/probe/` counts in the kernel; this loads it with as much of it as the kernel has hooks for, and reads it.

mod hooks;
mod idle;
mod known;
mod load;
mod read;
mod settings;
mod told;

pub use hooks::{Kernel, Point};
pub use load::{Probe, Storage};
pub use read::{monotonic_ns, slots, Reader, Slot};
pub use told::{told, Told};

/// What the probe's headers define; see build/headers.rs.
#[allow(dead_code)]
pub mod intf {
    include!(concat!(env!("OUT_DIR"), "/probe_intf.rs"));
}

/// What libbpf-cargo generated, in modules of its own.
macro_rules! generated {
    ($($name:ident = $file:literal;)*) => {
        $(
            #[allow(
                clippy::all,
                clippy::pedantic,
                clippy::undocumented_unsafe_blocks,
                clippy::unwrap_used,
                non_camel_case_types,
                dead_code
            )]
            mod $name {
                include!(concat!(env!("OUT_DIR"), $file));
            }
        )*
    };
}

// The probe, and the look at what guests are told.
generated! {
    bpf = "/probe.skel.rs";
    guest_bpf = "/guest.skel.rs";
}
