// SPDX-License-Identifier: GPL-2.0-only
//! Wells' hardware spin detection: who stores nothing makes no progress, in whatever mode.

use cohort_sim::kvm::{PleMode, Wells};
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;

use crate::common::*;

/// Two wait in user mode from 10 us on, without PAUSE, for the third at 65 us.
const USER: &str = "
    barriers = { b = { pause = false } }
    [[thread]]
    name = 't'
    count = 2
    steps = [{ compute = '10us' }, { barrier = { name = 'b', spin = 'forever' } }]
    [[thread]]
    name = 'late'
    steps = [{ compute = '65us' }, { barrier = { name = 'b', spin = 'forever' } }]";

/// The mode of each exit.
fn exits(text: &str, vcpus: u32, wells: Wells) -> Vec<(u64, bool)> {
    let mut config = vm(vcpus, text);
    config.kvm.ple.mode = if vcpus == 3 { PleMode::Kernel } else { PleMode::Off };
    config.kvm.wells = wells;
    let pins: Vec<u32> = (0..vcpus).collect();
    let machine = MachineConfig::ideal(vcpus);
    let s = build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&pins).until(MS);
    s.list(|what| match what {
        What::Ple { kernel, .. } => Some(*kernel),
        _ => None,
    })
}

fn every_10_us(stores: u32) -> Wells {
    Wells { instructions: 10_000, stores, instructions_per_us: 1_000 }
}

#[test]
fn a_loop_in_user_mode_is_found_although_intels_pause_filter_does_not_see_it() {
    assert_eq!(exits(USER, 3, Wells::default()), []);
    let found = exits(USER, 3, every_10_us(1));
    // Two vCPUs, every 10 us from 20 to 60 us.
    assert_eq!(
        found.iter().map(|(at, _)| at / US).collect::<Vec<_>>(),
        [20, 20, 30, 30, 40, 40, 50, 50, 60, 60]
    );
    assert!(found.iter().all(|(_, kernel)| !kernel));
}

#[test]
fn no_loop_stores_less_than_nothing() {
    assert_eq!(exits(USER, 3, every_10_us(0)), []);
}

#[test]
fn who_computes_stores() {
    assert_eq!(
        exits(
            "[[thread]]\nname = 't'\nsteps = [{ compute = '500us' }, { kernel = '300us' }]",
            1,
            every_10_us(1)
        ),
        []
    );
}

#[test]
fn the_kernels_loops_are_found_too() {
    let text = "
        [[thread]]
        name = 'holder'
        steps = [{ lock = { name = 'l', hold = '35us' } }]
        [[thread]]
        name = 'spinner'
        steps = [{ compute = '1us' }, { lock = { name = 'l', hold = '1us' } }]";
    // From 1 us on.
    assert_eq!(exits(text, 2, every_10_us(1)), [(11 * US, true), (21 * US, true), (31 * US, true)]);
}
