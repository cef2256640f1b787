// SPDX-License-Identifier: GPL-2.0-only
//! Small recordings by hand; and whatever a recording says, reading it ends well.

use cohort_recording::{End, Event, Header, Kind, Pcpu, Recording, VcpuAbout, VmAbout};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::replay::{replays, Replay};
use super::{import, Who};
use crate::observe::What;
use crate::time::{Ns, MS, US};
use crate::workload::program::{Spin, Times};
use crate::workload::{Dist, Step};

/// Two pCPUs; VM 0 with vCPUs in slots 0 and 1, VM 1 with one in slot 2.
fn recording(events: &[(Ns, u16, u16, Kind, u8, u16)]) -> Recording {
    let pcpu = |cpu| Pcpu { cpu, core: cpu, ..Pcpu::default() };
    let vcpu = |slot: u16, vcpu| VcpuAbout { slot, vcpu, ..VcpuAbout::default() };
    let vm = |name: &str, vcpus| VmAbout { name: name.into(), weight: 100.0, vcpus, ..VmAbout::default() };
    let event = |&(time_ns, vcpu, cpu, kind, a, b): &(Ns, u16, u16, Kind, u8, u16)| Event {
        time_ns,
        cpu,
        vcpu,
        kind,
        a,
        b,
    };
    Recording {
        header: Header { pcpus: vec![pcpu(0), pcpu(1)], ..Header::default() },
        end: End {
            clock_ns: 100 * MS,
            vms: vec![vm("a", vec![vcpu(0, 0), vcpu(1, 1)]), vm("b", vec![vcpu(2, 0)])],
            ..End::default()
        },
        events: events.iter().map(event).collect(),
        ..Recording::default()
    }
}

fn replay(recording: &Recording) -> Replay {
    let who = Who::of(recording).unwrap();
    replays(recording, &who, 0, who.length_ns).swap_remove(0)
}

fn compute(ns: Ns) -> Step {
    Step::Compute(Dist::fixed(ns))
}

#[test]
fn figures_are_what_the_events_say() {
    let recording = recording(&[
        (0, 0, 0, Kind::Run, 0, 0),
        (0, 1, 1, Kind::Run, 0, 0),
        (10 * MS, 0, 0, Kind::Preempted, 0, 0),
        (10 * MS, 2, 0, Kind::Run, 0, 0),
        (15 * MS, 1, 1, Kind::Ple, 1, 0),
        (15 * MS, 1, 1, Kind::Yield, 1, 0),
        (30 * MS, 1, 1, Kind::Halted, 0, 40),
        (40 * MS, 2, 0, Kind::Preempted, 0, 0),
        (40 * MS, 0, 0, Kind::Run, 1, 0),
    ]);
    let imported = import(&recording, 1 << 20, 1000).unwrap();
    let figures = imported.figures.unwrap();
    let (a, b) = (&figures.vms[0], &figures.vms[1]);
    assert_eq!((imported.length_ns, imported.unknown), (100 * MS, 0));
    assert_eq!((a.vcpus[0].run_ns, a.vcpus[0].ready_ns, a.vcpus[1].run_ns), (70 * MS, 30 * MS, 30 * MS));
    assert_eq!(a.host.costop_ns, 20 * MS, "until its sibling halts");
    assert_eq!((a.host.preemptions, a.host.preemptions_kernel), (1, 1));
    assert_eq!((a.guest.counts.ple, a.guest.counts.yields_granted), (1, 1));
    assert_eq!((a.guest.counts.halts, a.guest.counts.halt_polled_ns), (1, 40 * US));
    assert_eq!((b.host.run_ns, b.host.ready_ns), (30 * MS, 60 * MS));
    assert!(!imported.perfetto.is_empty() && !imported.timeline.unwrap().is_empty());
}

#[test]
fn who_ends_or_sleeps_after_a_turn_that_was_lost_waits_no_longer() {
    for kind in [Kind::Gone, Kind::Halted, Kind::Blocked] {
        let recording = recording(&[
            (0, 0, 0, Kind::Run, 0, 0),
            (10 * MS, 0, 0, Kind::Preempted, 0, 0),
            (10 * MS, 2, 0, Kind::Run, 0, 0),
            // That it ran is not recorded.
            (20 * MS, 0, 0, kind, 0, 0),
        ]);
        let figures = import(&recording, 0, 0).unwrap().figures.unwrap();
        let (a, b) = (&figures.vms[0], &figures.vms[1]);
        assert_eq!((a.vcpus[0].run_ns, a.vcpus[0].ready_ns), (10 * MS, 10 * MS), "{kind:?}");
        assert_eq!((b.host.run_ns, b.host.ready_ns), (90 * MS, 0), "{kind:?}");
    }
}

#[test]
fn a_pcpu_may_come_while_a_host_is_recorded() {
    let recording = recording(&[
        (0, 0, 0, Kind::Run, 0, 0),
        (10 * MS, 0, 6, Kind::Moved, 0, 0),
        (10 * MS, 0, 6, Kind::Run, 0, 0),
        (20 * MS, 1, u16::MAX, Kind::Run, 0, 0),
    ]);
    let imported = import(&recording, 1 << 20, 1000).unwrap();
    let figures = imported.figures.unwrap();
    assert_eq!((figures.vms[0].vcpus[0].run_ns, figures.host.pcpus), (100 * MS, 7));
    assert_eq!(imported.unknown, 1, "no host has such a pCPU");
}

#[test]
fn exits_of_one_spin_are_those_with_little_run_time_between_them() {
    let ple = |us: Ns| (us * US, 0, 0, Kind::Ple, 1, 0);
    let recording = recording(&[
        (0, 0, 0, Kind::Run, 0, 0),
        ple(100),
        ple(1_000),
        ple(2_001),
        // Time without a pCPU is none of the spin's.
        (2_500 * US, 0, 0, Kind::Preempted, 0, 0),
        (9_500 * US, 0, 0, Kind::Run, 1, 0),
        ple(9_600),
        ple(9_700),
        // It sleeps: what it waited for has come.
        (9_800 * US, 0, 0, Kind::Halted, 0, 0),
        (9_900 * US, 0, 0, Kind::Woken, 0, 0),
        (9_900 * US, 0, 0, Kind::Run, 0, 0),
        ple(9_950),
    ]);
    let figures = import(&recording, 0, 0).unwrap().figures.unwrap();
    let counts = &figures.vms[0].guest.counts;
    assert_eq!((counts.ple, counts.ple_chains, counts.ple_chain_max), (6, 3, 3));
    assert_eq!(counts.ple_chain_lengths, [1, 1, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_thread_that_wakes_up_elsewhere_was_moved() {
    let recording = recording(&[
        (0, 0, 0, Kind::Run, 0, 0),
        (10 * MS, 0, 0, Kind::Halted, 0, 0),
        (20 * MS, 0, 1, Kind::Moved, 0, 0),
        (20 * MS, 0, 1, Kind::Woken, 0, 0),
        (20 * MS, 0, 1, Kind::Run, 0, 0),
        (30 * MS, 0, 1, Kind::Halted, 0, 0),
        (40 * MS, 0, 1, Kind::Woken, 0, 0),
        (50 * MS, 0, 0, Kind::Run, 0, 0),
        (60 * MS, 0, 0, Kind::Preempted, 0, 0),
        (70 * MS, 0, 1, Kind::Moved, 0, 0),
        (80 * MS, 0, 1, Kind::Run, 0, 0),
    ]);
    let figures = import(&recording, 1 << 20, 1000).unwrap().figures.unwrap();
    assert_eq!((figures.vms[0].host.migrations, figures.vms[0].host.switches), (3, 4));
    assert_eq!(figures.vms[0].host.ready_ns, 30 * MS);
}

/// When who yielded to whom, and who got a pCPU when.
fn turns(recording: &Recording) -> Vec<(Ns, &'static str, u32)> {
    let who = Who::of(recording).unwrap();
    let mut told = Vec::new();
    super::stream::play(recording, &who, &mut |now_ns, what| match *what {
        What::DirectedYield { to, granted, .. } => {
            told.push((now_ns, if granted { "yields to" } else { "refused by" }, to.id));
        }
        What::Switch { next: Some(task), .. } => told.push((now_ns, "runs", task.0)),
        _ => {}
    });
    told
}

#[test]
fn a_yield_comes_before_the_turn_that_it_gave() {
    // The kernel says of a yield that it was granted when the vCPU runs again.
    let told = |trigger: Kind, between: &[(Ns, u16, u16, Kind, u8, u16)]| {
        let begin = [(0, 1, 0, Kind::Woken, 0, 0), (0, 0, 0, Kind::Run, 0, 0), (MS, 0, 0, trigger, 1, 0)];
        let left = [
            (3 * MS, 0, 0, Kind::Preempted, 0, 0),
            (3 * MS, 1, 0, Kind::Run, 0, 0),
            (5 * MS, 1, 0, Kind::Preempted, 0, 0),
            (5 * MS, 0, 0, Kind::Run, 0, 0),
        ];
        let end = [(6 * MS, 0, 0, Kind::Yield, 1, 1)];
        turns(&recording(&[&begin, &left[..], between, &end].concat()))
    };
    let first = [(3 * MS, "yields to", 1), (3 * MS, "runs", 1), (5 * MS, "runs", 0)];
    for trigger in [Kind::Ple, Kind::Hypercall] {
        assert_eq!(told(trigger, &[])[1..], first);
    }
    // Preempted; it yielded to nobody until it was back, and there is nobody who runs instead.
    let last = [(3 * MS, "runs", 1), (5 * MS, "runs", 0), (6 * MS, "yields to", 1)];
    assert_eq!(told(Kind::Ipi, &[])[1..], last);
    assert_eq!(told(Kind::Ple, &[(5 * MS, 0, 0, Kind::Hypercall, 5, 0)])[1..], last);
    let refused = told(Kind::Ple, &[(5 * MS, 0, 0, Kind::Yield, 0, 1)]);
    assert_eq!(refused[3..], [(5 * MS, "refused by", 1), (6 * MS, "yields to", 1)]);
}

#[test]
fn a_replay_waits_for_the_sibling_that_woke_it_and_else_for_its_time() {
    let recording = recording(&[
        (0, 0, 0, Kind::Run, 0, 0),
        (0, 1, 1, Kind::Run, 0, 0),
        (2 * MS, 1, 1, Kind::Halted, 0, 500),
        (5 * MS, 0, 0, Kind::Ipi, 253, 1),
        (5 * MS, 1, 1, Kind::Woken, 0, 0),
        (6 * MS, 1, 1, Kind::Run, 0, 0),
        (7 * MS, 1, 1, Kind::Halted, 0, 0),
        (9 * MS, 1, 1, Kind::Woken, 0, 0),
        (9 * MS, 1, 1, Kind::Run, 0, 0),
    ]);
    let replay = replay(&recording);
    let steps = |id: usize| replay.program.threads[id].steps.clone();
    assert_eq!(replay.program.threads[1].vcpu, Some(1));
    assert_eq!(steps(0), [compute(5 * MS), Step::Signal("0 to 1".into()), compute(95 * MS)]);
    let sleep = Step::Sleep(Dist::fixed(2 * MS));
    // What KVM polled was no work.
    let work = compute(2 * MS - 500 * US);
    assert_eq!(steps(1), [work, Step::Wait("0 to 1".into()), compute(MS), sleep, compute(91 * MS)]);
    assert_eq!((replay.seen.wakes_by_siblings, replay.seen.sleeps), (1, 1));
    assert_eq!(replay.load.threads[0].times, Times::Forever);
}

#[test]
fn what_is_spun_is_no_work() {
    // Vector 252 is followed by pause-loop exits until the sibling that was away runs.
    let recording = recording(&[
        (0, 0, 0, Kind::Run, 0, 0),
        (0, 1, 1, Kind::Run, 0, 0),
        (MS, 1, 1, Kind::Preempted, 0, 0),
        (2 * MS, 0, 0, Kind::Ipi, 252, 1),
        (3 * MS, 0, 0, Kind::Ple, 1, 0),
        (6 * MS, 1, 1, Kind::Run, 0, 0),
        (50 * MS, 0, 0, Kind::Ipi, 252, 1),
    ]);
    let replay = replay(&recording);
    let call = Step::Call { same_space: true };
    assert_eq!(
        replay.program.threads[0].steps,
        [compute(2 * MS), call.clone(), compute(44 * MS), call, compute(50 * MS)]
    );
    assert_eq!((replay.seen.spun_ns, replay.seen.calls), (4 * MS, 2));
}

#[test]
fn who_always_spins_when_a_sibling_is_away_meets_it_often() {
    let mut events = vec![(0, 0, 0, Kind::Run, 0, 0), (0, 1, 1, Kind::Run, 0, 0)];
    for round in 0..20 {
        let at_ns = (round * 4 + 1) * MS;
        events.push((at_ns, 1, 1, Kind::Preempted, 0, 0));
        events.push((at_ns + 250 * US, 0, 0, Kind::Ple, 0, 0));
        events.push((at_ns + 2 * MS, 1, 1, Kind::Run, 0, 0));
    }
    let replay = replay(&recording(&events));
    assert_eq!((replay.seen.absences, replay.seen.spins_user), (20, 20));
    let meeting = Step::Barrier { name: "all".into(), spin: Spin::Forever };
    let count = |step: &Step| match step {
        Step::Repeat { times: Times::Fixed(times), .. } => *times,
        step => u64::from(*step == meeting),
    };
    let counts: Vec<u64> =
        replay.program.threads.iter().map(|thread| thread.steps.iter().map(count).sum()).collect();
    assert!(counts[0] > 100 && counts[0] == counts[1], "each comes as often: {counts:?}");
}

fn events() -> impl Strategy<Value = Vec<(Ns, u16, u16, Kind, u8, u16)>> {
    let kind = prop::sample::select(Kind::ALL.to_vec());
    let event = (0..200 * MS, 0u16..4, 0u16..3, kind, any::<u8>(), prop_oneof![0u16..4, any::<u16>()]);
    prop::collection::vec(event, 0..60).prop_map(|mut events| {
        events.sort_by_key(|event| event.0);
        events
    })
}

fn cases() -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let rng_seed = if config.rng_seed == RngSeed::Random { RngSeed::Fixed(20_263) } else { config.rng_seed };
    ProptestConfig { rng_seed, ..config }
}

proptest! {
    #![proptest_config(cases())]

    /// Events in any order that times allow: times still add up, and what is made of them is a program that the simulator takes.
    #[test]
    fn whatever_was_recorded_can_be_imported(events in events(), from_ns in 0..150 * MS, length_ns in 0..150 * MS) {
        let recording = recording(&events);
        let who = Who::of(&recording).unwrap();
        let imported = import(&recording, 1 << 20, 1 << 10).unwrap();
        let figures = imported.figures.unwrap();
        for vm in &figures.vms {
            for vcpu in &vm.vcpus {
                prop_assert!(vcpu.run_ns + vcpu.ready_ns <= imported.length_ns);
            }
        }
        for replay in replays(&recording, &who, from_ns, from_ns + length_ns) {
            prop_assert!(replay.seen.work_ns <= replay.seen.run_ns);
            prop_assert!(replay.program.check().is_ok() && replay.load.check().is_ok());
        }
    }
}
