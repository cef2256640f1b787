# SPDX-License-Identifier: GPL-2.0-only
"""The probe's figures beside what was provoked on purpose, each by a program that does little else (truth.c)."""

from __future__ import annotations

import shlex
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from disturbance import Disturbance
from ground import LOOP, SUMMED_KERNELS, Cgroups
from probe import EXACT, Probe, close_to, counted, grown, returning
from provoked import TRUTH, Alone, Window, alone, put, spans

from cohortlab.lab import sampling

if TYPE_CHECKING:
    from conftest import Bench

# Within 2 % asks for a machine that does little else, so these are not among what `make test` runs.
pytestmark = [pytest.mark.lab, pytest.mark.long, SUMMED_KERNELS]

S = 1_000_000_000
MS = 1_000_000
# Of /proc/stat.
TICK_NS = 10 * MS
# So often, and for so many ms each time, a vCPU's pCPU is taken from it, and not.
BURSTS, ON_MS, OFF_MS = 100, 60, 40
# So often where nobody else may run meanwhile, the lab's agent and the probe's reader included.
SHORT = 40
# After so long its sibling notices, and calls it.
STILL_MS = 10
SPINS = 150
# So many of the spins the host's own threads may interrupt.
LOST_FOR_A_MOMENT = 0.03
# More than the probe follows at once.
VMS = 1100
# At most so many of them may find a guest that computes in its tick.
IN_TICKS = 0.3
USER = f"sh -c {shlex.quote(LOOP)}"
KERNEL = "dd if=/dev/zero of=/dev/null bs=16M"


def test_an_idle_vms_vcpus_are_halted(bench: Bench) -> None:
    with Probe(bench) as probe:
        host = Alone(Cgroups(bench), probe, "pv")
        (before, kernel_before), start = host.look(), probe.last["clock_ns"]
        time.sleep(16)
        (after, kernel_after), end = host.look(), probe.last["clock_ns"]
        for was, now in zip(before["vcpus"], after["vcpus"], strict=True):
            says = {name: kernel_after[now["vcpu"]][name] - was for name, was in kernel_before[now["vcpu"]].items()}
            got = {name: grown(was, now, name) for name in ("run_ns", "ready_ns", "halted_ns", "blocked_ns", "halts")}
            window_ns = end - start
            print(f"vCPU {now['vcpu']}: probe {got}, kernel {says}: halted {got['halted_ns'] / window_ns:.2%}")
            # Whatever a thread does not run or wait for a pCPU, it sleeps; here for one reason.
            assert got["halted_ns"] == close_to(window_ns - says["run_ns"] - says["ready_ns"])
            assert got["blocked_ns"] <= EXACT * window_ns
            assert got["halts"] == close_to(says["switches"] - says["preemptions"], 5)
            assert got["halted_ns"] >= (1 - EXACT) * window_ns


def kept_from(host: Alone) -> Window:
    """Take the pCPU from vCPU 1 again and again, and check what does not depend on its guest's mode."""
    window = host.bursts(BURSTS, ON_MS, OFF_MS)
    names = ("preemptions", "preemptions_kernel", "wait_kernel_ns", "ready_ns", "costop_ns")
    got = {name: window.grown(1, name) for name in names}
    used, sibling = window.used_ns, window.kernel[0]["ready_ns"]
    print(
        f"taken {BURSTS} times, {used} ns: probe {got}, kernel {window.kernel[1]}; its sibling waited for {sibling} ns"
    )
    assert used == pytest.approx(BURSTS * ON_MS * MS, rel=0.1)
    # The host's own threads take a pCPU now and then; how often it was in all the kernel tells, below.
    assert got["preemptions"] == close_to(BURSTS, 4)
    assert got["preemptions"] == close_to(window.kernel[1]["preemptions"])
    assert got["ready_ns"] == close_to(used)
    # In so much of it, at most, no sibling ran.
    assert used * (1 - EXACT) - sibling <= got["costop_ns"] <= used * (1 + EXACT)
    # The sibling has waited for the host's own work meanwhile; who was behind before is at most that.
    before, skew = window.before["skew_ns"], window.after["skew_ns"]
    print(f"skew {before} and then {skew} ns")
    assert skew == close_to(used - sibling, before + EXACT * used)
    return window


def test_who_loses_its_pcpu_in_its_guests_kernel_waits_for_as_long_as_that_was_taken(bench: Bench) -> None:
    with alone(bench, "work") as host:
        host.keep(0, USER)
        host.keep(1, KERNEL)
        time.sleep(1)
        window = kept_from(host)
        kernel, all_of_them = (window.grown(1, name) for name in ("preemptions_kernel", "preemptions"))
        assert kernel == close_to(BURSTS, 4)
        # The few that were not in its kernel have waited for as long, each; one or two were others', and for a moment.
        assert window.grown(1, "wait_kernel_ns") == close_to(window.used_ns * kernel / all_of_them)


def test_who_loses_its_pcpu_in_user_mode_was_not_in_its_guests_kernel(bench: Bench) -> None:
    with alone(bench, "work") as host:
        host.keep(0, USER)
        host.keep(1, USER)
        time.sleep(1)
        window = kept_from(host)
        # The guest's ticks are in its kernel: a tenth of its time on a slow machine.
        kernel = window.grown(1, "preemptions_kernel")
        assert kernel <= IN_TICKS * BURSTS
        assert window.grown(1, "wait_kernel_ns") == pytest.approx(
            window.used_ns * kernel / BURSTS, abs=EXACT * window.used_ns
        )


def test_who_waits_while_its_sibling_surely_runs_is_co_stopped_for_all_of_it(bench: Bench) -> None:
    """A burst takes vCPU 1's pCPU while vCPU 0 is before all else on the other."""
    with alone(bench, "work") as host:
        for vcpu in (0, 1):
            host.keep(vcpu, USER)
        time.sleep(1)
        window = host.bursts(SHORT, ON_MS, OFF_MS, first=0)
        ready, costop = (window.grown(1, name) for name in ("ready_ns", "costop_ns"))
        print(f"taken for {window.used_ns} ns: ready {ready}, co-stop {costop}; kernel {window.kernel}")
        assert costop == close_to(window.used_ns)
        assert ready == close_to(window.used_ns)


def test_who_waits_while_its_sibling_waits_as_well_is_not_co_stopped(bench: Bench) -> None:
    """A burst takes the one pCPU that both may use; between bursts vCPU 1 has that, and vCPU 0 waits for it."""
    with alone(bench, "work") as host:
        tid = host.probe.vm("work")["vcpus"][0]["tid"]
        for vcpu in (0, 1):
            host.keep(vcpu, USER)
        time.sleep(1)
        host.ground.host.check(f"taskset -c -p 1 {tid}")
        window = host.bursts(BURSTS, ON_MS, OFF_MS)
        ready, costop = ([window.grown(vcpu, name) for vcpu in (0, 1)] for name in ("ready_ns", "costop_ns"))
        ran = [window.grown(vcpu, "run_ns") for vcpu in (0, 1)]
        print(f"taken for {window.used_ns} ns: ran {ran}, ready {ready}, co-stop {costop}; kernel {window.kernel}")
        assert costop[0] == close_to(window.kernel[1]["run_ns"])
        assert ready[0] == close_to(window.used_ns + window.kernel[1]["run_ns"])
        assert ready[1] == close_to(window.used_ns)
        assert costop[1] <= EXACT * window.used_ns


@dataclass(frozen=True)
class Called:
    """Calls of a sibling that came while a burst had its pCPU: how many, and how long it was until the burst's end."""

    window: Window
    count: int
    waited_ns: float
    took_ns: int
    away: float

    def close_to(self, wanted: float) -> object:
        """Who is elsewhere between making up its mind and calling calls later, and perhaps when a burst has ended."""
        return close_to(wanted, self.away * wanted)


def called(host: Alone, how: str) -> Called:
    """Let vCPU 0 call its sibling whenever that stands still, again and again in the bursts.

    It stands still as well when this machine is elsewhere; who is called then was not preempted.
    """
    job = host.guest.spawn(f"calls-{how}", f"exec {TRUTH} calls {how} {STILL_MS * 1000}")
    try:
        host.ground.bench.until(lambda: "ready" in job.output()[0], "the sibling runs")
        disturbance = Disturbance(host.ground.place)
        window = host.bursts(BURSTS, ON_MS, OFF_MS)
        away = disturbance.part()
    finally:
        job.signal(signal.SIGTERM)
    assert job.wait(host.ground.bench.patience_s(60)) == 0
    calls, bursts = spans(job, host.tsc_offset()), window.bursts
    met = [(call, burst) for call in calls for burst in bursts if burst.begin <= call.begin < burst.end]
    ns_per_tick = sum(burst.ns for burst in bursts) / sum(burst.end - burst.begin for burst in bursts)
    waited_ns = ns_per_tick * sum(burst.end - call.begin for call, burst in met)
    print(
        f"{how}: {len(calls)} calls, {len(met)} of them in {BURSTS} bursts, {waited_ns:.0f} ns before the bursts' end"
    )
    print(f"the emulator waited for {away:.1%} of it")
    assert len(met) >= BURSTS / 2
    return Called(window, len(met), waited_ns, sum(call.ns for call, _ in met), away)


def test_an_interrupt_for_a_preempted_sibling_waits_until_that_runs_again(bench: Bench) -> None:
    with alone(bench, "work") as host:
        called_for = called(host, "ipi")
        window = called_for.window
        got, waited = window.grown(1, "ipis_preempted"), window.grown(1, "ipi_wait_ns")
        print(f"probe: {got} met it preempted, and waited for {waited} ns; {window.grown(0, 'ipis_sent')} sent in all")
        assert got == called_for.close_to(called_for.count)
        assert waited == called_for.close_to(called_for.waited_ns)
        assert window.grown(0, "ipis_preempted") <= EXACT * called_for.count
        # A sibling whose guest has switched to a thread of its kernel meanwhile is not called: membarrier() returns.
        assert window.grown(0, "ipis_sent") >= max(got, called_for.count * (1 - EXACT))


def test_a_flush_is_put_off_until_a_preempted_sibling_runs_again(bench: Bench) -> None:
    with alone(bench, "pv") as host:
        before = host.probe.vm("pv")
        called_for = called(host, "flush")
        got = called_for.window.grown(1, "tlb_deferred")
        print(f"probe: {got} put off")
        assert got == called_for.close_to(called_for.count)
        assert grown(before, called_for.window.after, "tlb_hypercalls") == 0
        # That is what it is for: nobody waits.
        assert called_for.took_ns < called_for.waited_ns / 2


def test_chains_of_exits_are_as_many_as_spins(bench: Bench) -> None:
    pauses, _ = sampling.pause_filter(bench.host)
    if not pauses:
        pytest.skip("this emulator has no pause filter: every PAUSE exits")
    machine = bench.place.guests["work"].machine
    put(machine)
    with Probe(bench) as probe:
        disturbance = Disturbance(bench.place)
        before = probe.vm("work")
        machine.check(f"{TRUTH} spins 1 {SPINS} {pauses}", 300)
        after = probe.vm("work")
        away = disturbance.part()
        names = ("ple", "ple_kernel", "ple_chains", "yields_asked")
        got = {name: grown(before["vcpus"][1], after["vcpus"][1], name) for name in names}
        lengths = [now - was for was, now in zip(before["ple_chain_lengths"], after["ple_chain_lengths"], strict=True)]
        print(f"{SPINS} spins of {pauses} PAUSEs: {got}, chains of {lengths}; the emulator waited for {away:.1%} of it")
        # Two spins each time, of two exits and of one. An emulator that is elsewhere seems to compute meanwhile,
        # and the guest's kernel may spin for a sibling of its own: each exit there can be a chain, or part one. A vCPU
        # that loses its pCPU for a moment spins with KVM's shortest window again: one more of its three exits.
        kernel = got["ple_kernel"]
        slack = away * SPINS + kernel
        assert got["ple"] - kernel == close_to(3 * SPINS, (away + LOST_FOR_A_MOMENT) * 3 * SPINS)
        assert got["ple_chains"] == close_to(2 * SPINS, slack)
        assert lengths[:2] == [close_to(SPINS, 2 * slack), close_to(SPINS, 2 * slack)]
        assert kernel <= 0.1 * got["ple"]


def test_yields_and_interrupts_are_as_many_as_the_kernel_counts(bench: Bench) -> None:
    with (
        Cgroups(bench) as ground,
        Probe(bench) as probe,
        returning(bench, "asked", "yield_to") as asks,
        returning(bench, "granted", "yield_to") as grants,
    ):
        assert probe.last["missing"] == [], probe.last["notes"]
        ground.busy("pv")
        job = bench.place.guests["work"].machine.spawn("truth-work", "hackbench -g 2 -l 100000 -f 5")
        before, _ = probe.stopped("work")
        tids = [vcpu["tid"] for vcpu in before["vcpus"]]
        own = " || ".join(f"common_pid == {tid}" for tid in tids)
        # An interrupt that a vCPU's thread brings to another one; its own timer's is no sibling's.
        others = " || ".join(f"(common_pid == {tid} && apicid != {vcpu})" for vcpu, tid in enumerate(tids))
        with (
            counted(bench, asks, where=own) as asked,
            counted(bench, grants, where=f"result > 0 && ({own})") as granted,
            counted(bench, "kvm/kvm_apic_accept_irq", where=others) as sent,
        ):
            probe.goes_on("work")
            time.sleep(6)
            after, _ = probe.stopped("work")
        probe.goes_on("work")
        job.signal(9)
        got = [grown(before, after, name) for name in ("yields_asked", "yields_granted", "ipis_sent")]
        says = [asked[0], granted[0], sent[0]]
        print(f"asked, granted, sent: probe {got}, kernel {says}")
        assert got == [close_to(count, 1) for count in says]
        assert min(says) > 10


def test_vms_that_come_and_go_leave_room_for_others(bench: Bench) -> None:
    put(bench.host)
    with Probe(bench) as probe:
        before = probe.sample()
        bench.host.check(f"{TRUTH} vms {VMS}", 600)
        after = probe.sample()
        names = [sorted(vm["name"] for vm in sample["vms"]) for sample in (before, after)]
        assert names[0] == names[1] != []
        # A VM beyond those that the probe can follow would be in a note.
        assert after["notes"] == before["notes"] == []
        for was in before["vms"]:
            (now,) = (vm for vm in after["vms"] if vm["id"] == was["id"])
            assert grown(was, now, "halted_ns") > 0


def test_who_is_kept_from_its_due_lags_by_it(bench: Bench) -> None:
    """One VM takes a pCPU, and is due half of that; the other is due the half as well, and has the other pCPU."""
    with alone(bench, "pv") as host:
        host.ground.set("work", "cpu.weight", 300)
        host.ground.busy("work")
        host.keep(1, USER)
        names = ("work", "pv", "hyper")
        sample = host.probe.sample()
        # Each of them is kept from a pCPU that another may use.
        assert all("lag_ns" in vm["missing"] for vm in sample["vms"])
        assert any("3 VM(s) lag is not known" in note for note in sample["notes"]), sample["notes"]
        for name in names:
            bench.host.check(f"taskset -a -c -p {host.ground.everywhere} {bench.place.guests[name].pid()}")
        time.sleep(1)
        assert all(vm["missing"] == [] for vm in host.probe.sample()["vms"])

        def look() -> tuple[dict[str, int], dict[str, dict[str, int]], int]:
            vms = {vm["name"]: vm for vm in host.probe.sample()["vms"]}
            kernel = {}
            for name in names:
                pid = bench.place.guests[name].pid()
                says = [host.probe.kernel_says(pid, vcpu["tid"]) for vcpu in vms[name]["vcpus"]]
                kernel[name] = {key: sum(one[key] for one in says) for key in ("run_ns", "ready_ns")}
            # Of all pCPUs, idle and waiting for a disk, in ticks.
            idle = sum(map(int, bench.host.read("/proc/stat").split()[4:6])) * TICK_NS
            return {name: int(vms[name]["lag_ns"]) for name in names}, kernel, idle

        lags_before, kernel_before, idle_before = look()
        time.sleep(16)
        lags, kernel, idle = look()
        ran = {name: kernel[name]["run_ns"] - kernel_before[name]["run_ns"] for name in names}
        ready = {name: kernel[name]["ready_ns"] - kernel_before[name]["ready_ns"] for name in names}
        # Who wants little gets that; the rest is shared by weight, 300 to 100.
        left = ran["work"] + ran["pv"] + idle - idle_before - ready["hyper"]
        due = {"work": 0.75 * left, "pv": 0.25 * left}
        for name, wanted in due.items():
            got = lags[name] - lags_before[name]
            print(f"{name}: due {wanted / S:.3f} s, ran {ran[name] / S:.3f} s: lag {got / S:.3f} s")
            assert got == close_to(wanted - ran[name])
        assert due["work"] - ran["work"] > 2 * S
