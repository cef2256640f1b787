// SPDX-License-Identifier: GPL-2.0-only
//! What a VM loses most to, in words.

use super::rates::Row;

/// Less lost than this per vCPU, in percent, is nothing to speak of.
const QUIET: f64 = 1.0;
/// So many pause-loop exits per second and vCPU are spinning.
const SPINNING: f64 = 100.0;
/// A cause must make up this part of the loss to be named.
const PART: f64 = 0.3;

/// One sentence about the interval of a VM.
pub fn of(vm: &Row) -> String {
    let c = &vm.counters;
    let ready = vm.per_vcpu_percent(c.ready_ns);
    let part = |ns: u64| if c.ready_ns == 0 { 0.0 } else { ns as f64 / c.ready_ns as f64 };
    let active = vm.active_ns();
    let stacked = if active == 0 { 0.0 } else { vm.stacked_ns as f64 / active as f64 };
    let spinning = vm.per_s(c.ple) / f64::from(vm.vcpus.max(1)) >= SPINNING;
    let spins = format!("{:.0} pause-loop exits/s", vm.per_s(c.ple));

    if active == 0 {
        return "idle".to_string();
    }
    if ready < QUIET {
        return if spinning {
            format!("spins although it gets its pCPUs: {spins}")
        } else {
            "loses nothing to speak of".to_string()
        };
    }
    let limited = vm.per_vcpu_percent(vm.throttled_ns);
    if limited >= QUIET && limited >= PART * ready {
        return format!("held back by its own limit (cpu.max): {limited:.0} % of the time per vCPU");
    }
    // Of n vCPUs on one pCPU only one can run: the others' waiting is home-made if siblings are whom they wait for.
    if stacked >= 0.2 && vm.stacked_ns as f64 >= 0.5 * c.ready_ns as f64 {
        return format!(
            "stacked: {:.0} % of the time its vCPUs were on one pCPU with a sibling",
            stacked * 100.0
        );
    }
    let kernel = part(c.wait_kernel_ns);
    let then = if spinning { format!("; siblings spin, {spins}") } else { String::new() };
    if kernel >= PART {
        let each = c.wait_kernel_ns as f64 / 1e6 / c.preemptions_kernel.max(1) as f64;
        return format!(
            "preempted in its kernel {:.0} times/s, {each:.1} ms until it ran again{then}",
            vm.per_s(c.preemptions_kernel)
        );
    }
    if part(c.costop_ns) >= PART {
        return format!(
            "co-stop: of {ready:.0} % ready per vCPU, {:.0} % while a sibling ran{then}",
            vm.per_vcpu_percent(c.costop_ns)
        );
    }
    if c.wait_wakeup_ns as f64 >= 0.5 * c.ready_ns as f64 {
        let each = c.wait_wakeup_ns as f64 / 1e6 / c.wakeups.max(1) as f64;
        return format!(
            "waits for a pCPU when it wakes up: {each:.1} ms each time, {ready:.0} % ready per vCPU{then}"
        );
    }
    format!("waits for pCPUs that others have: {ready:.0} % ready per vCPU{then}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::counters::Counters;

    const S: u64 = 1_000_000_000;

    fn said(counters: Counters, change: impl FnOnce(&mut Row)) -> String {
        let mut row = Row { secs: 1.0, vcpus: 2, counters, ..Row::default() };
        change(&mut row);
        of(&row)
    }

    #[test]
    fn the_greatest_cause_is_named() {
        let busy = Counters { run_ns: S, ready_ns: S, ..Counters::default() };
        let none = |_: &mut Row| {};
        assert_eq!(said(Counters::default(), none), "idle");
        assert_eq!(said(Counters { run_ns: S, ..Counters::default() }, none), "loses nothing to speak of");
        assert!(said(busy, none).starts_with("waits for pCPUs that others have: 50 %"));
        assert!(said(Counters { costop_ns: S / 2, ..busy }, none).contains("25 % while a sibling ran"));
        assert!(said(busy, |row| row.stacked_ns = S).starts_with("stacked: 50 %"));
        assert!(said(busy, |row| row.throttled_ns = S).contains("cpu.max"));
        let kernel = Counters { wait_kernel_ns: S / 2, preemptions_kernel: 100, ple: 5_000, ..busy };
        assert_eq!(
            said(kernel, none),
            "preempted in its kernel 100 times/s, 5.0 ms until it ran again; siblings spin, 5000 pause-loop exits/s"
        );
        assert!(said(Counters { run_ns: S, ple: 5_000, ..Counters::default() }, none)
            .starts_with("spins although"));
        let woken = Counters { wait_wakeup_ns: S, wakeups: 100, ..busy };
        assert!(said(woken, none).contains("10.0 ms each time"));
    }
}
