# SPDX-License-Identifier: GPL-2.0-only
"""A comparison from end to end in a place that does what the test tells it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from cohortlab import compare
from cohortlab.commands import policies_of
from cohortlab.compare import INTERRUPTED, Plan
from cohortlab.errors import BadInput
from cohortlab.places import PlaceCrashed, PlaceError, PlaceFailed
from cohortlab.policies import parse_policies
from cohortlab.progress import Progress
from cohortlab.results import Results
from cohortlab.scenario import Scenario
from cohortlab.summary import figures, for_machines
from cohortlab.workloads import WorkloadError, WorkloadTimeout

Run = Callable[..., Results]
PER_ROUND = 6  # two programs: alone, and under two policies


@pytest.fixture
def run(place: Any, two: Scenario) -> Run:
    """Return a function that carries out a comparison of eevdf and cohort without warm-up."""

    def run(rounds: int = 2, policies: str = "eevdf,cohort", progress: Progress | None = None, **plan: Any) -> Results:
        modes = plan.pop("modes", {"ipi": two})
        first = next(iter(modes.values()))
        chosen = parse_policies(policies, plan.pop("policy_args", ()))
        plan = {"warm_up": False, **plan}
        results = Results(
            scenario=first.name,
            scenario_text=first.text,
            pcpus=2,
            command="cohortlab compare",
            version="0",
            policies=tuple(policy.label for policy in chosen),
            programs=first.program_vm.programs,
            tlb_modes=tuple(modes),
            rounds=rounds,
        )
        the_plan = Plan(policies=chosen, rounds=rounds, modes=modes, **plan)
        compare.run(the_plan, place.open, progress or Progress(), results)
        return results

    return run


def switches(place: Any) -> list[str]:
    return [entry[1] for entry in place.log if entry[0] == "policy"]


def test_a_round_is_alone_then_each_policy_and_the_order_alternates(run: Run, place: Any) -> None:
    results = run(rounds=3)
    there, back = ["eevdf", "eevdf", "cohort"], ["eevdf", "cohort", "eevdf"]
    assert switches(place) == there * 2 + back * 2 + there * 2
    measured = [entry[1:] for entry in place.log if entry[0] == "measure"]
    assert measured[:PER_ROUND] == [
        ("alone", "spin"),
        ("eevdf", "spin"),
        ("cohort", "spin"),
        ("alone", "serve"),
        ("eevdf", "serve"),
        ("cohort", "serve"),
    ]
    assert [row.order for row in results.rows] == [0, 1, 2] * 6
    assert [row.policy for row in results.rows[PER_ROUND : 2 * PER_ROUND]] == ["alone", "cohort", "eevdf"] * 2
    assert place.log[0] == ("open", "ipi", "None")
    assert place.log[-1] == ("close",)
    assert results.stopped is None
    assert results.places == {"ipi": {"kernel": "9.9.9-test", "accelerator": "none"}}


def test_the_figures(run: Run, place: Any, two: Scenario) -> None:
    place.took_s = {
        ("alone", "spin"): 2.0,
        ("eevdf", "spin"): 5.0,
        ("cohort", "spin"): 4.2,
        ("alone", "serve"): 1.0,
        ("eevdf", "serve"): 4.0,
        ("cohort", "serve"): 2.0,
    }
    place.work_share = 1.05
    by_key = {(o["program"], o["policy"]): o for o in for_machines(run(), figures(run(), two))}
    spin = by_key["spin", "eevdf"]
    # Alone the VM uses both pCPUs and is entitled to one: the ideal slowdown is 2.
    assert (spin["demand_pcpus"], spin["ideal_slowdown"]) == (2, 2)
    assert (spin["median_s"], spin["alone_median_s"]) == (5, 2)
    assert (spin["slowdown"], spin["over_ideal"]) == pytest.approx((2.5, 1.25))
    assert (spin["neighbour_share"], spin["neighbour_due"]) == pytest.approx((0.475, 0.5))
    assert spin["neighbour_of_due"] == pytest.approx(0.95)
    assert spin["host_busy"] == pytest.approx(1)
    assert spin["guest_per_s"] == pytest.approx({"tlb_shootdowns": 500})
    # A rate falls when the program slows down; its seconds are those of one unit of work.
    serve = by_key["serve", "eevdf"]
    assert (serve["median"], serve["unit"], serve["metric"]) == (25, "MB/s", "rate")
    assert serve["median_s"] == pytest.approx(1 / 25)
    assert (serve["slowdown"], serve["over_ideal"]) == pytest.approx((4, 2))
    assert by_key["serve", "cohort"]["over_ideal"] == pytest.approx(1)


def test_the_hosts_own_work_is_nobodys_share_but_idling_is(run: Run, place: Any, two: Scenario) -> None:
    def spin() -> dict[str, Any]:
        results = run(rounds=1, policies="cohort")
        return for_machines(results, figures(results, two))[0]

    place.work_share, place.overhead = 0.9, 0.2
    found = spin()
    assert (found["neighbour_share"], found["neighbour_due"], found["neighbour_of_due"]) == pytest.approx(
        (0.45, 0.45, 1)
    )
    assert (found["host_busy"], found["host_left"]) == pytest.approx((0.9, 0.9))
    place.idle = 0.1
    found = spin()
    # 0.8 of the 0.9 pCPUs that are its due: nobody got the rest.
    assert (found["neighbour_share"], found["neighbour_due"]) == pytest.approx((0.4, 0.45))
    assert (found["host_busy"], found["host_left"]) == pytest.approx((0.85, 0.9))
    assert found["neighbours"] == {"hog": pytest.approx({"share": 0.4, "due": 0.45})}
    # The ideal slowdown is against the whole host.
    assert found["ideal_slowdown"] == pytest.approx(2)


def test_each_round_is_held_against_the_median_alone(run: Run, place: Any, two: Scenario) -> None:
    alone = iter([1.0, 9.0, 2.0])
    loaded = iter([4.0, 3.0, 10.0])
    real = place.measure

    def measure(vm: str, program: str) -> Any:
        policy = place.now if place.loads else "alone"
        place.took_s[policy, "spin"] = next(loaded if place.loads else alone)
        return real(vm, program)

    place.measure = measure
    spin = two.with_programs(("spin",))
    (figure,) = figures(run(rounds=3, policies="eevdf", modes={"ipi": spin}), spin)
    assert figure.slowdowns == (2, 1.5, 5)
    assert (figure.slowdown.median, figure.slowdown.min, figure.slowdown.max) == (2, 1.5, 5)


def test_variants_of_a_policy_have_their_own_arguments(run: Run, place: Any) -> None:
    results = run(
        rounds=1,
        policies="cohort,cohort@plain",
        policy_args=("cohort=--slice-us 5000", "cohort@plain=--boost off --slice-us 9"),
    )
    assert ("policy", "cohort", "--slice-us", "5000") in place.log
    assert ("policy", "cohort", "--boost", "off", "--slice-us", "9") in place.log
    assert {(row.policy, row.scheduler, row.policy_args) for row in results.rows} == {
        ("alone", "eevdf", ()),
        ("cohort", "cohort", ("--slice-us", "5000")),
        ("cohort@plain", "cohort", ("--boost", "off", "--slice-us", "9")),
    }


def test_arguments_of_a_label_are_given_once() -> None:
    with pytest.raises(BadInput, match='--policy-args: "cohort" is given twice: must be once, with all its arguments'):
        parse_policies("cohort", ("cohort=--slice-us 4000", "cohort=--boost off"))


def test_options_arguments_take_the_place_of_the_scenarios_label_by_label(two: Scenario) -> None:
    own = ("cohort=--boost off", "eevdf@smp=--cgroup-mode smp")
    defaults = two.defaults.model_copy(update={"policies": ("cohort", "eevdf@smp"), "policy_args": own})
    two = dataclasses.replace(two, defaults=defaults)

    def args(text: str | None, *given: str) -> list[tuple[str, ...]]:
        return [policy.args for policy in policies_of(two, text, given)]

    assert args(None) == [("--boost", "off"), ("--cgroup-mode", "smp")]
    assert args(None, "cohort=--slice-us 4000") == [("--slice-us", "4000"), ("--cgroup-mode", "smp")]
    assert args(None, "cohort=") == [(), ("--cgroup-mode", "smp")]
    assert args("cohort,eevdf", "cohort=--slice-us 4000") == [("--slice-us", "4000"), ()]


def test_a_crash_voids_the_round_which_is_run_again(run: Run, place: Any) -> None:
    place.raises = {PER_ROUND + 4: PlaceCrashed("Oops:\n int3")}
    results = run(rounds=2)
    assert place.log.count(("reset",)) == 1
    # The other program's round is none the worse for it.
    assert [(row.round, row.attempt) for row in results.rows] == [(1, 1)] * PER_ROUND + [(2, 1)] * 3 + [(2, 2)] * 3
    (crash,) = results.crashes
    assert (crash.round, crash.attempt, crash.reason) == (2, 1, "Oops: int3")
    assert crash.doing == "round 2 of 2: serve under cohort"
    assert results.stopped is None
    # The second attempt is in the order of the round, not of the attempt.
    assert switches(place)[-2:] == ["cohort", "eevdf"]


def test_a_crash_counts_also_when_leaving_the_block_fails_after_it(run: Run, place: Any) -> None:
    place.raises = {2: PlaceCrashed("panic")}
    place.raises_leaving_policy = {"cohort": PlaceError("the agent does not answer")}
    real = place.reset

    def reset() -> None:
        place.raises_leaving_policy = {}
        real()

    place.reset = reset
    results = run(rounds=1)
    assert [crash.reason for crash in results.crashes] == ["panic"]
    assert not results.failed
    assert len(results.rows) == PER_ROUND


def test_too_many_crashes_end_it_and_complete_rounds_stay(run: Run, place: Any) -> None:
    place.raises = {number: PlaceCrashed("again") for number in range(PER_ROUND, 99)}
    results = run(rounds=2, crashes_max=2)
    assert len(results.crashes) == 3
    assert place.log.count(("reset",)) == 2
    assert results.stopped == "gave up after 3 crashes of the host under test; the last one: again"
    assert {row.round for row in results.rows} == {1}
    assert place.log[-1] == ("close",)


def test_a_crash_while_booting_or_warming_up_is_tried_again(run: Run, place: Any) -> None:
    place.raises_opening = [PlaceCrashed("at boot")]
    place.raises = {1: PlaceCrashed("warming up")}
    results = run(rounds=1, warm_up=True)
    assert [(crash.round, crash.doing) for crash in results.crashes] == [(0, "booting"), (0, "warming up: serve")]
    assert [entry[0] for entry in place.log].count("open") == 2
    assert len(results.rows) == PER_ROUND


def test_warm_up_is_not_recorded(run: Run, place: Any) -> None:
    results = run(rounds=1, warm_up=True)
    assert place.measured == PER_ROUND + 2
    assert len(results.rows) == PER_ROUND


@pytest.mark.parametrize("leaving", [False, True], ids=["while measuring", "when leaving the block"])
def test_a_policy_that_dies_is_out_and_the_others_go_on(run: Run, place: Any, leaving: bool) -> None:
    death = PlaceError("cohort ended by itself:\nrunnable task stall")
    if leaving:
        place.raises_leaving_policy = {"cohort": death}
    else:
        place.raises = {2: death}
    results = run(rounds=3)
    reason = "cohort ended by itself: runnable task stall"
    assert results.failed == {("ipi", "cohort", program): reason for program in ("spin", "serve")}
    assert {row.policy for row in results.rows} == {"alone", "eevdf"}
    assert len([row for row in results.rows if row.policy == "eevdf"]) == 6
    assert switches(place).count("cohort") == 1
    assert results.stopped is None


def test_a_policy_that_dies_later_keeps_its_complete_rounds(run: Run, place: Any, two: Scenario) -> None:
    place.raises = {PER_ROUND + 1: PlaceError("gone")}
    results = run(rounds=2)
    found = {(o["policy"], o["program"]): o for o in for_machines(results, figures(results, two))}
    assert (found["cohort", "spin"]["rounds"], found["cohort", "spin"]["error"]) == (1, "gone")
    assert (found["eevdf", "spin"]["rounds"], found["eevdf", "spin"]["error"]) == (2, None)


def test_no_policy_left_ends_it(run: Run, place: Any, two: Scenario) -> None:
    place.raises_leaving_policy = {"cohort": PlaceError("gone")}
    results = run(rounds=3, policies="cohort")
    assert results.stopped == "no policy is left to compare; cohort: gone"
    objects = for_machines(results, figures(results, two))
    assert [(o["policy"], o["program"], o["median_s"], o["error"]) for o in objects] == [
        ("cohort", "spin", None, "gone"),
        ("cohort", "serve", None, "gone"),
    ]


def test_a_program_that_fails_under_a_policy_is_out_under_that_policy(run: Run, place: Any, two: Scenario) -> None:
    place.raises = {1: WorkloadError("spin: did not end\nin 120 s")}
    results = run(rounds=2)
    assert results.failed == {("ipi", "eevdf", "spin"): "spin: did not end in 120 s"}
    assert [(row.policy, row.program) for row in results.rows] == [
        *(("alone", "spin"), ("cohort", "spin"), ("alone", "serve"), ("eevdf", "serve"), ("cohort", "serve")),
        *(("alone", "spin"), ("cohort", "spin"), ("alone", "serve"), ("cohort", "serve"), ("eevdf", "serve")),
    ]
    objects = for_machines(results, figures(results, two))
    assert [(o["program"], o["policy"], o["rounds"], o["error"]) for o in objects] == [
        ("spin", "eevdf", 0, "spin: did not end in 120 s"),
        ("spin", "cohort", 2, None),
        ("serve", "eevdf", 2, None),
        ("serve", "cohort", 2, None),
    ]


def test_a_program_that_fails_alone_is_left_out(run: Run, place: Any) -> None:
    place.raises = {PER_ROUND: WorkloadError("spin: sh: no such command")}
    results = run(rounds=2)
    assert results.stopped is None
    reason = "spin fails alone: spin: sh: no such command"
    assert results.failed == {("ipi", policy, "spin"): reason for policy in ("eevdf", "cohort")}
    assert [row.program for row in results.rows if row.round == 2] == ["serve"] * 3


def test_no_program_is_left(run: Run, place: Any) -> None:
    place.raises = {number: WorkloadError("sh: no such command") for number in range(100)}
    results = run(rounds=2)
    assert results.stopped == "no program is left to compare; serve fails alone: sh: no such command"
    assert results.rows == []


def test_a_program_that_hangs_alone_is_a_crash(run: Run, place: Any) -> None:
    place.raises = {0: WorkloadTimeout("spin: warming up"), 3 + PER_ROUND // 2: WorkloadTimeout("serve: did not end")}
    results = run(rounds=1, warm_up=True)
    assert [crash.reason for crash in results.crashes] == ["spin: warming up", "serve: did not end"]
    assert len(results.rows) == PER_ROUND
    assert results.stopped is None


def test_a_program_that_hangs_alone_now_and_then_stays_in(run: Run, place: Any) -> None:
    hangs = WorkloadTimeout("spin: did not end")
    # After the first time it is warmed up, with all others, and then measured.
    place.raises = {0: hangs, 3: hangs}
    results = run(rounds=1, warm_up=True)
    assert [crash.reason for crash in results.crashes] == ["spin: did not end"] * 2
    assert len(results.rows) == PER_ROUND
    assert results.failed == {}


def test_a_program_that_hangs_alone_again_is_out_and_the_others_go_on(run: Run, place: Any) -> None:
    hangs = WorkloadTimeout("spin: did not end")
    place.raises = {0: hangs, 1: hangs}
    results = run(rounds=1, warm_up=True)
    assert [crash.reason for crash in results.crashes] == ["spin: did not end"]
    assert {row.program for row in results.rows} == {"serve"}
    assert set(results.failed.values()) == {"spin fails alone: spin: did not end, twice in a row"}
    assert results.stopped is None


def test_what_a_place_says_after_a_crash_is_kept_as_well(run: Run, place: Any) -> None:
    def reset() -> None:
        place.description = {**place.description, "started": "by a boot"}

    place.description = {**place.description, "started": "from a saved state"}
    place.reset = reset
    place.raises = {0: PlaceCrashed("lost"), 1: PlaceCrashed("lost again")}
    results = run(rounds=1)
    assert [about["started"] for about in results.places.values()] == ["from a saved state, later by a boot"]


@pytest.mark.parametrize("leaving", [False, True], ids=["in peace", "with the place failing on the way out"])
def test_interrupted(run: Run, place: Any, leaving: bool) -> None:
    place.raises = {2 * PER_ROUND + 4: KeyboardInterrupt()}
    if leaving:
        real, calls = place.policy, []

        def policy(name: str, args: Any = ()) -> Any:
            calls.append(name)
            if len(calls) == 17:
                place.raises_leaving_policy = {name: PlaceError("cannot be stopped")}
            return real(name, args)

        place.policy = policy
    results = run(rounds=5)
    assert results.stopped == INTERRUPTED
    assert [row.program for row in results.rows if row.round == 3] == ["spin"] * 3
    assert len(results.rows) == 2 * PER_ROUND + 3
    assert place.log[-1] == ("close",)
    assert not place.loads


def test_a_place_that_refuses_is_bad_input(run: Run, place: Any) -> None:
    place.raises_opening = [PlaceError("--kernel: x: cannot\nbe read")]
    with pytest.raises(BadInput, match=r"^--kernel: x: cannot be read$"):
        run()


def test_a_place_that_fails_is_not_the_users_fault(run: Run, place: Any) -> None:
    place.raises_opening = [PlaceFailed("apt-get cannot download x:\nno route")]
    results = run()
    assert results.stopped == "apt-get cannot download x: no route"
    assert not results.rows


def test_a_place_with_another_number_of_pcpus(run: Run, place: Any) -> None:
    place.pcpus = 1
    assert run().stopped == "the place has 1 pCPUs, the scenario wants 2"


def test_a_crash_when_all_is_measured_loses_nothing(run: Run, place: Any, two: Scenario) -> None:
    class DiesAtTheEnd:
        def __init__(self, *_: Any, **__: Any) -> None:
            place.scenario = two

        def __enter__(self) -> Any:
            return place

        def __exit__(self, *_: Any) -> None:
            raise PlaceCrashed("panic at shutdown")

    place.open = DiesAtTheEnd
    results = run(rounds=1)
    assert (len(results.rows), results.stopped) == (PER_ROUND, "panic at shutdown")


def test_each_tlb_mode_has_its_own_place(run: Run, place: Any, two: Scenario) -> None:
    results = run(rounds=1, modes={mode: two.with_tlb(mode) for mode in ("ipi", "hypercall")})
    assert [entry for entry in place.log if entry[0] in ("open", "close")] == [
        ("open", "ipi", "None"),
        ("close",),
        ("open", "hypercall", "None"),
        ("close",),
    ]
    assert [row.tlb for row in results.rows] == ["ipi"] * PER_ROUND + ["hypercall"] * PER_ROUND
    keys = [(o["tlb"], o["program"], o["policy"]) for o in for_machines(results, figures(results, two))]
    assert keys == [
        (tlb, program, policy)
        for tlb in ("ipi", "hypercall")
        for program in ("spin", "serve")
        for policy in ("eevdf", "cohort")
    ]


def lost_later(place: Any, second: list[BaseException]) -> None:
    """Have the second place, and those after it, fail to open."""
    real, opened = place.open, []

    def opens(*args: Any, **options: Any) -> Any:
        opened.append(args)
        if len(opened) == 2:
            place.raises_opening = second
        return real(*args, **options)

    place.open = opens


@pytest.mark.parametrize(
    ("failures", "stopped", "crashes"),
    [
        ([PlaceCrashed("at boot")] * 9, "gave up after 3 crashes of the host under test; the last one: at boot", 3),
        ([PlaceError("no memory left")], "no memory left", 0),
        ([PlaceCrashed("at boot"), PlaceError("no memory left")], "no memory left", 1),
        ([OSError(28, "No space left on device")], "[Errno 28] No space left on device", 0),
        ([KeyboardInterrupt()], INTERRUPTED, 0),
        ([PlaceCrashed("at boot"), KeyboardInterrupt()], INTERRUPTED, 1),
    ],
    ids=["crashes", "refuses", "crashes, then refuses", "no space", "interrupted", "interrupted after a crash"],
)
def test_a_later_place_that_does_not_come_up_leaves_what_is_measured(
    run: Run, place: Any, two: Scenario, failures: list[BaseException], stopped: str, crashes: int
) -> None:
    lost_later(place, list(failures))
    modes = {mode: two.with_tlb(mode) for mode in ("ipi", "kvm-pv", "hypercall")}
    results = run(rounds=1, modes=modes, crashes_max=2)
    assert (results.stopped, len(results.crashes)) == (stopped, crashes)
    assert [row.tlb for row in results.rows] == ["ipi"] * PER_ROUND
    objects = for_machines(results, figures(results, two))
    assert {o["tlb"] for o in objects if o["median_s"] is not None} == {"ipi"}


@pytest.mark.parametrize("failing", [PlaceCrashed, PlaceError])
def test_interrupted_while_booting_counts_also_when_closing_fails_after_it(
    run: Run, place: Any, failing: type[Exception]
) -> None:
    def opens(*args: Any, **options: Any) -> Any:
        place.log.append(("open",))
        try:
            raise KeyboardInterrupt
        finally:
            raise failing("cannot be closed")

    place.open = opens
    assert run().stopped == INTERRUPTED
    assert place.log == [("open",)]


def test_rounds_are_kept_as_they_complete(place: Any, two: Scenario, run: Run) -> None:
    kept = []
    results = run(rounds=1)
    results.rows.clear()
    plan = Plan(parse_policies("eevdf", ()), 3, {"ipi": two}, warm_up=False)
    compare.run(plan, place.open, Progress(), results, lambda: kept.append(len(results.rows)))
    assert kept == [4, 8, 12]


def test_progress_knows_what_is_left(run: Run, place: Any) -> None:
    seen: list[tuple[float, float | None]] = []

    now_s = 0.0

    class Watch(Progress):
        def done(self, step: Any) -> None:
            nonlocal now_s
            now_s += 5
            super().done(step)
            seen.append((self.fraction, self.left_s()))

    place.raises = {PER_ROUND + 5: PlaceCrashed("x")}
    run(rounds=2, progress=Watch(clock=lambda: now_s))
    # Every step takes 5 s of this clock, so the time left is 5 s for each step to come.
    assert seen[0] == pytest.approx((1 / 12, 55))
    assert seen[PER_ROUND - 1] == pytest.approx((0.5, 30))
    assert seen[PER_ROUND + 4] == pytest.approx((11 / 12, 5))
    # The crash puts the round's steps back.
    assert seen[PER_ROUND + 5] == pytest.approx((10 / 12, 10))
    assert seen[-1] == pytest.approx((1, 0))
