// SPDX-License-Identifier: GPL-2.0-only
//! The order that docs/policies.md has as its example, where the scheduler under test has it: tests/mutations/ compiles it in.

use cohort_sim::policies::ORDERS;

use crate::common::{assert_near, shares, world_with, MS};
use crate::spec::{Knobs, Spec};

#[test]
fn a_lottery_divides_by_weight() {
    let Some(lottery) = ORDERS.iter().position(|row| row[0] == "lottery") else { return };
    let knobs = Knobs { order: Some(lottery as u32), slice_ns: Some(MS), ..Knobs::default() };
    let mut w = world_with(1, knobs);
    let tasks: Vec<_> = [100, 200, 300].map(|weight| w.spawn(Spec { weight, ..Spec::busy() })).into();
    let got = shares(&mut w, 20_000 * MS, &tasks);
    for (share, due) in got.into_iter().zip([1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0]) {
        assert_near(share, due, 0.03);
    }
}
