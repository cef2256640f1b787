// SPDX-License-Identifier: GPL-2.0-only
//! One thing that happened to a vCPU, as the kernel's probe tells it (`struct probe_event` of bpf/probe/intf.h).

/// Bytes of one event, in the ring buffer and in the file.
pub const BYTES: usize = 16;
/// In `b`: nobody that was recorded.
pub const NOBODY: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Got pCPU `cpu`; `a`: it was preempted in the guest's kernel before.
    Run = 1,
    /// Lost its pCPU, and could go on.
    Preempted = 2,
    /// Waits for pCPU `cpu`.
    Woken = 3,
    /// The guest halted it; `b`: µs that KVM polled since the last halt.
    Halted = 4,
    /// Asleep in the VMM, or waiting for a page.
    Blocked = 5,
    /// Waits for pCPU `cpu` instead.
    Moved = 6,
    Gone = 7,
    /// The slot's new owner: `cpu` is the VM's slot, `b` the vCPU's number.
    Joined = 8,
    /// A pause-loop exit; `a`: in the guest's kernel.
    Ple = 9,
    /// KVM asked for a directed yield to `b`; `a`: granted.
    Yield = 10,
    /// An interrupt for its sibling `b`; `a`: the vector.
    Ipi = 11,
    /// `a`: its number.
    Hypercall = 12,
    /// A TLB flush by Hyper-V's hypercall.
    TlbHypercall = 13,
    /// It was preempted, and carries out the TLB flush that a sibling asked for meanwhile; `b`: its own number.
    TlbDeferred = 14,
}

impl Kind {
    pub const ALL: [Kind; 14] = [
        Kind::Run,
        Kind::Preempted,
        Kind::Woken,
        Kind::Halted,
        Kind::Blocked,
        Kind::Moved,
        Kind::Gone,
        Kind::Joined,
        Kind::Ple,
        Kind::Yield,
        Kind::Ipi,
        Kind::Hypercall,
        Kind::TlbHypercall,
        Kind::TlbDeferred,
    ];

    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Run => "run",
            Kind::Preempted => "preempted",
            Kind::Woken => "woken",
            Kind::Halted => "halted",
            Kind::Blocked => "blocked",
            Kind::Moved => "moved",
            Kind::Gone => "gone",
            Kind::Joined => "joined",
            Kind::Ple => "ple",
            Kind::Yield => "yield",
            Kind::Ipi => "ipi",
            Kind::Hypercall => "hypercall",
            Kind::TlbHypercall => "tlb-hypercall",
            Kind::TlbDeferred => "tlb-deferred",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Of the host's monotonic clock.
    pub time_ns: u64,
    pub cpu: u16,
    /// The vCPU's slot: see [`crate::VcpuAbout`].
    pub vcpu: u16,
    pub kind: Kind,
    pub a: u8,
    pub b: u16,
}

impl Event {
    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.cpu.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.vcpu.to_le_bytes());
        bytes[12] = self.kind as u8;
        bytes[13] = self.a;
        bytes[14..].copy_from_slice(&self.b.to_le_bytes());
        bytes
    }

    /// None: of a kind that there is not.
    pub fn from_bytes(bytes: [u8; BYTES]) -> Option<Self> {
        let [t0, t1, t2, t3, t4, t5, t6, t7, c0, c1, v0, v1, kind, a, b0, b1] = bytes;
        Some(Self {
            time_ns: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            cpu: u16::from_le_bytes([c0, c1]),
            vcpu: u16::from_le_bytes([v0, v1]),
            kind: Kind::of(kind)?,
            a,
            b: u16::from_le_bytes([b0, b1]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_its_bytes() {
        for kind in Kind::ALL {
            let event = Event { time_ns: u64::MAX - 5, cpu: 4095, vcpu: 16383, kind, a: 7, b: 0x1234 };
            assert_eq!(Event::from_bytes(event.to_bytes()), Some(event));
            assert_eq!(Kind::of(kind as u8), Some(kind));
        }
        assert_eq!(Kind::of(0), None);
        assert_eq!(Kind::of(15), None);
    }
}
