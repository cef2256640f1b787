// SPDX-License-Identifier: GPL-2.0-only
//! What is counted of a vCPU, each counter written down once: its name in JSON, what it means, how it is read.

use serde::{Deserialize, Serialize};

/// A counter's name and meaning, and how to get it.
pub struct Counter {
    pub name: &'static str,
    pub meaning: &'static str,
    pub of: fn(&Counters) -> u64,
}

macro_rules! counters {
    ($($name:ident $meaning:literal,)*) => {
        /// Everything that grows, of one vCPU or summed over those of a VM.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Counters {
            $(pub $name: u64,)*
        }

        pub const COUNTERS: &[Counter] = &[
            $(Counter { name: stringify!($name), meaning: $meaning, of: |counters| counters.$name },)*
        ];

        impl Counters {
            pub fn add(&mut self, other: &Counters) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }

            /// Each of them, or that of `other` where it is greater.
            pub fn raise_to(&mut self, other: &Counters) {
                $(self.$name = self.$name.max(other.$name);)*
            }

            /// What was added since.
            pub fn since(&self, before: &Counters) -> Counters {
                Counters { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }
    };
}

counters! {
    run_ns "had a pCPU",
    ready_ns "could run and had no pCPU",
    halted_ns "halted by its guest",
    blocked_ns "asleep in the VMM, or waiting for a page",
    costop_ns "ready while at least one sibling ran",
    switches "put on a pCPU",
    migrations "moved to another pCPU",
    wakeups "waits after a wake-up that have ended",
    wait_wakeup_ns "how long they lasted",
    preemptions "lost its pCPU though it could go on",
    preemptions_kernel "waits after a preemption in the guest's kernel that have ended",
    wait_kernel_ns "how long they lasted",
    halts "its thread slept because the guest had halted it",
    halt_polled_ns "KVM polled before that",
    ple "pause-loop exits",
    ple_kernel "of these, in the guest's kernel",
    ple_chains "spins with at least one exit",
    yields_asked "KVM asked the scheduler to run a sibling",
    yields_granted "the scheduler said yes",
    ipis_sent "interrupts sent to siblings",
    ipis_preempted "interrupts from siblings that came while it was preempted, and have been taken",
    ipi_wait_ns "how long these waited for it to run",
    tlb_hypercalls "TLB flushes asked of KVM (Hyper-V's hypercall)",
    tlb_deferred "TLB flushes put off until it ran again (KVM's PV flush)",
    kicks "halted siblings that it woke by hypercall",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_are_of_each_counter() {
        let mut a = Counters { run_ns: 5, kicks: 1, ..Counters::default() };
        let b = Counters { run_ns: 7, ple: 2, ..Counters::default() };
        a.add(&b);
        assert_eq!(a, Counters { run_ns: 12, kicks: 1, ple: 2, ..Counters::default() });
        assert_eq!(a.since(&b), Counters { run_ns: 5, kicks: 1, ..Counters::default() });
        assert_eq!(b.since(&a).run_ns, 0, "a thread that is gone takes its counters along");
        assert_eq!((COUNTERS[0].of)(&a), 12);
        a.raise_to(&Counters { run_ns: 11, ple: 3, ..Counters::default() });
        assert_eq!(a, Counters { run_ns: 12, kicks: 1, ple: 3, ..Counters::default() });
    }
}
