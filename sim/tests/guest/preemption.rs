// SPDX-License-Identifier: GPL-2.0-only
//! Lock-holder preemption in theory: one lock, two vCPUs.
//!
//! vCPU A takes and releases the lock all the time: holds are exponential with mean h, the pauses between them with mean c. Its pCPU is its own
//! and a hog's in turns of S. vCPU B has a pCPU to itself; it looks at the lock now and then, at times that have nothing to do with A, and holds
//! it for no time. B finds, with p = h / (h + c):
//!
//! - A running (1/2) and holding (p): A needs, from then on, its remaining hold, h (no memory), and is preempted h / S times meanwhile, each time for S: 2 h.
//! - A preempted (1/2) while it held (p): on average S/2 until A runs again, then h, and S for each further preemption: e / (1 - e), e = exp(-S / h).
//! - otherwise nothing.
//!
//! So B waits p / 2 * (2 h + S / 2 + h + S e / (1 - e)) on average.

use cohort_sim::machine::MachineConfig;

use crate::common::*;

const H: f64 = 100_000.0;
const C: f64 = 300_000.0;
const S: f64 = 1_000_000.0;

#[test]
fn the_mean_wait_is_what_theory_says() {
    let text = "
        [[thread]]
        name = 'a'
        background = true
        times = 'forever'
        steps = [{ compute = { exp = '300us' } }, { lock = { name = 'l', hold = { exp = '100us' } } }]
        [[thread]]
        name = 'b'
        times = 'forever'
        background = true
        steps = [{ sleep = { exp = '10ms' } }, { lock = { name = 'l', hold = '0ns' } }]";
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[vm(2, text)], &[hog(0)], 11)
        .pin(&[0, 1])
        .until(60_000 * MS);
    let waits: Vec<f64> =
        s.taken(2).iter().filter(|(_, (who, _))| *who == 1).map(|(_, (_, waited))| *waited as f64).collect();
    let n = waits.len() as f64;
    assert!(n > 5_000.0, "{n}");
    let mean = waits.iter().sum::<f64>() / n;
    let variance = waits.iter().map(|wait| (wait - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let error = (variance / n).sqrt();

    let p = H / (H + C);
    let e = (-S / H).exp();
    let expected = p / 2.0 * (2.0 * H + S / 2.0 + H + S * e / (1.0 - e));
    // 99.9 %, and an interval that says something.
    assert!(3.29 * error < 0.15 * expected, "the interval of {error} around {mean} says nothing");
    assert!((mean - expected).abs() < 3.29 * error, "measured {mean} +- {error}, theory {expected}");
    // The share of waits at all: p.
    let waited = waits.iter().filter(|wait| **wait > 0.0).count() as f64 / n;
    assert!((waited - p).abs() < 3.29 * (p * (1.0 - p) / n).sqrt(), "{waited} {p}");
}
