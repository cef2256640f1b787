// SPDX-License-Identifier: GPL-2.0-only
//! Names of things: small numbers, given in order, never used again within a simulation.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// As an index into a table with one entry each.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<usize> for $name {
            fn from(index: usize) -> Self {
                debug_assert!(index <= u32::MAX as usize);
                Self(index as u32)
            }
        }
    };
}

id!(
    /// A hardware thread of the host.
    CpuId
);
id!(
    /// A thread of the host: a vCPU, another thread of a VMM, a process.
    TaskId
);
id!(
    /// A cgroup of the host. 0 is the root.
    GroupId
);
id!(
    /// A virtual machine.
    VmId
);

/// A vCPU: its VM, and its number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuId {
    pub vm: VmId,
    pub id: u32,
}
