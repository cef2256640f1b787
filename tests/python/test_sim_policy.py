# SPDX-License-Identifier: GPL-2.0-only
"""Policies of the simulated host: the same presets, flags, ranges and values as those of the program ``cohort``."""

import re
from pathlib import Path

import pytest

from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.policies import PRESETS as KNOWN_PRESETS
from cohortlab.policies import kernel_settings
from cohortlab.scenario import Scenario
from cohortlab.sim import policy
from cohortlab.sim.model import Run

REPO = Path(__file__).parents[2]
GUIDE = (REPO / "docs/cohort.md").read_text()
INTF = (REPO / "bpf/intf.h").read_text()
STATE = "\n".join(path.read_text() for path in sorted((REPO / "bpf").glob("*.h")))


def test_presets_are_those_of_the_guide() -> None:
    assert tuple(policy.PRESETS) == KNOWN_PRESETS
    for name in KNOWN_PRESETS:
        assert f"| {' | '.join(f'`{value}`' for value in (name, *policy.PRESETS[name].values()))} |" in GUIDE


def test_ranges_are_those_of_the_guide() -> None:
    rows = re.findall(r"^\| `--([a-z-]+-us)` \|.*\| (\d+)–(\d+) \|$", GUIDE, re.MULTILINE)
    assert {name: (int(low), int(high)) for name, low, high in rows} == policy.TIMING


def test_rules_are_those_of_the_guide() -> None:
    rules = re.findall(r"^\| `--([a-z-]+-us)` ≤ `--([a-z-]+-us)` \|", GUIDE, re.MULTILINE)
    assert tuple(rules) == policy.AT_MOST


def test_defaults_are_those_of_the_scheduler() -> None:
    found = re.findall(r"^KNOB u64 (\w+)_ns = (\d+)000;", STATE, re.MULTILINE)
    defaults = {f"{name}_ns": int(us) for name, us in found}
    knob = {name: policy.KNOBS.get(name, f"{name.removesuffix('-us').replace('-', '_')}_ns") for name in policy.TIMING}
    assert {name: defaults[knob[name]] for name in policy.TIMING} == policy.DEFAULTS


@pytest.mark.parametrize("enum", ["PLACEMENT", "BOOST"])
def test_values_are_those_of_the_scheduler(enum: str) -> None:
    found = {name.lower().replace("_", "-"): int(value) for name, value in re.findall(rf"\b{enum}_(\w+) = (\d+)", INTF)}
    assert getattr(policy, enum) == found


def test_knobs_exist_in_the_scheduler() -> None:
    names = set(re.findall(r"^KNOB u\d+ (\w+)", STATE, re.MULTILINE))
    # Equal, so they contradict nothing; and each has something to say.
    # Each of these needs one choice.
    needs = {"skew-us": "relaxed", "guard-grace-us": "kernel-mode", "guard-keep-us": "halted"}
    for gang, guard in (("relaxed", "kernel-mode"), ("aligned", "halted")):
        timing = [name for name in policy.TIMING if needs.get(name, gang) in (gang, guard)]
        args = [part for name in timing for part in (f"--{name}", "5000")]
        assert set(policy.knobs("cohort", [*args, "--gang", gang, "--guard", guard])) <= names


def test_a_flag_overrides_the_preset() -> None:
    assert policy.knobs("vtime", ["--order=vm", "--boost", "candidate,migrate", "--slice-us", "5000"]) == {
        "placement": 0,
        "order": policy.TABLES["order"]["vm"],
        "gang": 0,
        "spin": policy.TABLES["spin"]["boost"],
        "guard": 0,
        "boost": 9,
        "slice_ns": 5_000_000,
    }


@pytest.mark.parametrize(
    ("name", "args", "more"),
    [
        ("cohort", [], policy.BOOST["ipi"]),
        ("cohort", ["--slice-us", "5000"], policy.BOOST["ipi"]),
        ("cohort", ["--boost", "candidate"], 0),
        ("cohort", ["--spin", "off"], 0),
        ("ple-any", [], 0),
        ("credit", [], 0),
    ],
)
def test_where_kvm_catches_nobody_the_default_boosts_who_is_called(name: str, args: list[str], more: int) -> None:
    caught, uncaught = policy.knobs(name, args), policy.knobs(name, args, caught=False)
    assert uncaught == caught | {"boost": caught["boost"] | more}


def test_alpha_is_a_number_or_a_fraction() -> None:
    for text, parts in (("2/3", 43_690), ("0.5", 32_768), ("1", 65_536)):
        assert policy.knobs("sbco", ["--sbco-alpha", text])["sbco_alpha"] == parts
    assert "sbco_alpha" not in policy.knobs("sbco", [])


def test_every_preset_goes_together() -> None:
    for name in policy.PRESETS:
        policy.knobs(name, [])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("cohort", ["--boost", "off", "--boost-slice-us", "300"]),
        ("credit", ["--gang", "strict", "--slice-us", "9000"]),
        # What nobody asks for contradicts nothing: no boost, no turn of ours.
        ("strict", ["--slice-us", "300", "--wakeup-gran-us", "100"]),
        ("credit", ["--starve-us", "1000"]),
    ],
)
def test_what_is_of_use_is_accepted(name: str, args: list[str]) -> None:
    assert policy.knobs(name, args)


def test_what_counts_as_communication_reaches_the_simulator() -> None:
    assert policy.host_class("partial-auto", ["--traffic", "faults"], "7.3")["traffic"] == "faults"
    assert "traffic" not in policy.host_class("partial-auto", [], "7.3")
    with pytest.raises(PlaceError, match=re.escape('--traffic: "x" is not allowed: must be one of interrupts, faults')):
        policy.host_class("partial-auto", ["--traffic", "x"], "7.3")


def test_the_faults_of_real_hosts_are_known_but_not_simulated() -> None:
    args = ["--traffic", "faults", "--faults-per-s", "500"]
    assert policy.knobs("partial-auto", args) == policy.knobs("partial-auto", [])
    with pytest.raises(PlaceError, match=r"^--faults-per-s is not simulated: "):
        policy.host_class("partial-auto", args, "7.3")


def test_sets_and_their_split_reach_the_simulator(tmp_path: Path) -> None:
    file = tmp_path / "sets"
    file.write_text("*: all\n")
    assert policy.host_class("partial", ["--sets", str(file)], "7.3")["sets"] == "*: all\n"
    file.write_text("# two\nweb: 0-\n")
    with pytest.raises(PlaceError, match=re.escape(f'--sets: {file}: line 2: vCPUs "0-"; allowed: numbers from 0')):
        policy.host_class("partial", ["--sets", str(file)], "7.3")
    assert policy.host_class("partial-auto", ["--split=2.5"], "7.3")["split"] == 2.5
    assert "split" not in policy.host_class("partial-auto", [], "7.3")


@pytest.mark.parametrize(
    ("kernel", "variant", "delay_dequeue", "pick_buddy"),
    [
        ("2.6.34", "cfs", None, None),
        ("6.5.13-1-amd64", "cfs", None, None),
        ("6.6", "eevdf", False, False),
        ("6.12.48+deb13", "eevdf", True, False),
        ("6.18.15+deb13-cloud-amd64", "eevdf", True, True),
        ("6.19", "eevdf-forfeit", True, True),
        ("7.2.12", "eevdf-forfeit", True, True),
        ("7.3.4", "eevdf-flat", True, True),
    ],
)
def test_a_kernel_has_its_form_of_the_fair_class(
    kernel: str, variant: str, delay_dequeue: bool | None, pick_buddy: bool | None
) -> None:
    found = policy.host_class("eevdf", (), kernel)
    assert (found["class"], found["variant"]) == ("fair", variant)
    assert (found.get("delay_dequeue"), found.get("pick_buddy")) == (delay_dequeue, pick_buddy)
    assert found.get("lazy_preemption") == (None if variant == "cfs" else kernel.startswith("7."))
    assert found.get("buddy_hints") == (kernel != "2.6.34" if variant == "cfs" else None)


@pytest.mark.parametrize(
    ("kernel", "bug"),
    [
        ("6.12.48+deb13", False),
        ("6.13", True),
        ("6.17.13", True),
        ("6.18.2", True),
        ("6.18.3", False),
        ("6.18.15+deb13-cloud-amd64", False),
        ("6.19", False),
    ],
)
def test_only_some_kernels_forget_whom_they_have_boosted(kernel: str, bug: bool) -> None:
    assert policy.kvm_of(kernel)["on_spin_bug"] == bug


@pytest.mark.parametrize(
    ("kernel", "yields_to_woken", "shrink"),
    [("2.6.39", False, 0), ("5.2.21", False, 0), ("5.3", True, 0), ("6.10.14", True, 0), ("6.11", True, 2)],
)
def test_yields_and_polling_are_those_of_the_kernel(kernel: str, yields_to_woken: bool, shrink: int) -> None:
    found = policy.kvm_of(kernel)
    assert (found["yields_to_woken"], found["halt_poll"]) == (yields_to_woken, {"shrink": shrink})


@pytest.mark.parametrize(
    ("kernel", "kick_yields", "lone_yields_not"),
    [("5.3.18", False, False), ("5.4", True, False), ("5.12.19", True, False), ("5.13", True, True)],
)
def test_yields_by_hypercall_and_interrupts_are_those_of_the_kernel(
    kernel: str, kick_yields: bool, lone_yields_not: bool
) -> None:
    assert policy.guest_of(kernel, 2)["send_ipi"] == ("shorthand" if kick_yields else "each")
    found = policy.kvm_of(kernel)
    assert (found["kick_yields"], found["lone_yields_not"]) == (kick_yields, lone_yields_not)


@pytest.mark.parametrize(
    ("kernel", "vcpus", "slice_ns", "hrtick"),
    [
        ("2.6.34", 4, 3_000_000, False),
        ("2.6.36.4", 1, 2_000_000, False),
        ("6.5.13", 4, 2_250_000, False),
        ("6.6", 1, 750_000, False),
        ("6.12.48+deb13", 2, 1_400_000, False),
        ("7.2.12", 3, 1_400_000, False),
        ("7.3.4", 2, 1_400_000, True),
        ("7.3.4", 4, 2_100_000, True),
        ("7.3.4", 24, 2_800_000, True),
    ],
)
def test_a_guests_tasks_have_slices_by_its_kernel_and_its_vcpus(
    kernel: str, vcpus: int, slice_ns: int, hrtick: bool
) -> None:
    found = policy.guest_of(kernel, vcpus)
    assert (found["slice_ns"], found["hrtick"]) == (slice_ns, hrtick)


@pytest.mark.parametrize(
    ("kernel", "vcpus", "latency_ns", "wakeup_gran_ns"),
    [
        ("2.6.34", 4, 15_000_000, 3_000_000),
        ("2.6.35", 1, 6_000_000, 1_000_000),
        ("4.15", 12, 24_000_000, 4_000_000),
        ("6.6", 4, None, None),
    ],
)
def test_cfs_turns_in_a_guest_are_those_of_its_kernel(
    kernel: str, vcpus: int, latency_ns: int | None, wakeup_gran_ns: int | None
) -> None:
    found = policy.guest_of(kernel, vcpus)
    assert (found.get("latency_ns"), found.get("wakeup_gran_ns")) == (latency_ns, wakeup_gran_ns)


@pytest.mark.parametrize(
    ("kernel", "wakelist"),
    [("2.6.39", "none"), ("3.0", "others"), ("3.2.102", "others"), ("3.3", "none"), ("5.19", "none"), ("6.0", "idle")],
)
def test_who_is_left_a_wake_up_is_by_kernel(kernel: str, wakelist: str) -> None:
    assert policy.guest_of(kernel, 2)["wakelist"] == wakelist


@pytest.mark.parametrize(
    ("kernel", "asks_kernel_only", "lazy_tlb"),
    [
        ("4.13.16", False, "asked"),
        ("4.14", True, "left"),
        ("4.19.300", True, "left"),
        ("4.20", True, "spared"),
        ("6.13.12", True, "spared"),
        ("6.14", True, "late"),
    ],
)
def test_who_is_asked_to_run_or_to_flush_is_by_kernel(kernel: str, asks_kernel_only: bool, lazy_tlb: str) -> None:
    found = (policy.kvm_of(kernel)["asks_kernel_only"], policy.guest_of(kernel, 2)["lazy_tlb"])
    assert found == (asks_kernel_only, lazy_tlb)


@pytest.mark.parametrize(
    ("kernel", "counts", "grows"),
    [("3.17.8", False, False), ("3.18", False, True), ("4.16.18", True, False), ("4.17", True, True)],
)
def test_windows_grow_since_the_kernel_has_them_grow(kernel: str, counts: bool, grows: bool) -> None:
    assert policy.window_grows(kernel, counts=counts) == grows


@pytest.mark.parametrize(
    ("kernel", "scheduler", "lazy"),
    [
        ("2.6.34", "cfs", False),
        ("6.5.13", "cfs", False),
        ("6.6", "eevdf", False),
        ("6.11.11", "eevdf", False),
        ("6.12", "eevdf-delay", False),
        ("6.18.2", "eevdf-delay", False),
        ("7.3.4", "eevdf-delay", True),
    ],
)
def test_a_guests_tasks_compete_as_its_kernel_has_it(kernel: str, scheduler: str, lazy: bool) -> None:
    found = policy.guest_of(kernel, 2)
    assert (found["scheduler"], found["lazy_preemption"], found["retains_tick"]) == (scheduler, lazy, lazy)


@pytest.mark.parametrize(
    ("kernel", "half_first_slice", "full_weights", "normalized_slice_ns"),
    [
        ("6.6", False, False, 750_000),
        ("6.6.92", False, False, 750_000),
        ("6.6.93", False, False, 700_000),
        ("6.11.11", False, False, 750_000),
        ("6.12.30", True, False, 750_000),
        ("6.12.48+deb13", True, False, 700_000),
        ("6.14.8", True, False, 750_000),
        ("6.14.9", True, False, 700_000),
        ("6.15", True, False, 700_000),
        ("7.0.3", True, False, 700_000),
        ("7.1", True, True, 700_000),
        ("7.3.4", True, True, 700_000),
    ],
)
def test_a_kernel_has_its_slices_and_its_precision(
    kernel: str, half_first_slice: bool, full_weights: bool, normalized_slice_ns: int
) -> None:
    found = policy.host_class("eevdf", (), kernel)
    assert (found["place_deadline_initial"], found["full_weights"]) == (half_first_slice, full_weights)
    assert (found["slice_ns"], found["normalized_slice_ns"]) == (0, normalized_slice_ns)


def test_the_kernel_divides_weights_as_it_is_told() -> None:
    assert policy.host_class("eevdf", (), "7.3")["group_weight"] == "auto"
    changed = policy.host_class("eevdf", ["--cgroup-mode=smp", "--base-slice-us", "3000"], "7.3")
    assert (changed["group_weight"], changed["slice_ns"]) == ("smp", 3_000_000)


def test_cfs_turns_are_as_long_as_it_is_told() -> None:
    assert policy.host_class("eevdf", (), "2.6.34") == {
        "class": "fair",
        "variant": "cfs",
        "buddy_hints": False,
        "newidle": "migration-cost",
    }
    told = policy.host_class("eevdf", ["--latency-us", "20000", "--min-granularity-us=4000"], "2.6.34")
    assert (told["latency_ns"], told["slice_ns"]) == (20_000_000, 4_000_000)


@pytest.mark.parametrize("kernel", ["2.6.34", "6.12", "7.3"])
def test_a_host_may_have_no_cgroup_for_a_vm(kernel: str) -> None:
    with_cgroups = policy.host_class("eevdf", (), kernel)
    assert "groups" not in with_cgroups
    assert policy.host_class("eevdf", ["--vm-cgroups", "yes"], kernel) == with_cgroups
    assert policy.host_class("eevdf", ["--vm-cgroups=no"], kernel) == with_cgroups | {"groups": False}


@pytest.mark.parametrize("kernel", ["4.15", "6.12", "7.3"])
def test_the_kernel_may_have_the_cures_of_pause_loop_exits(kernel: str) -> None:
    without = policy.host_class("eevdf", (), kernel)
    kvm = policy.kvm_of(kernel)
    assert kvm["asks_kernel_only"]
    assert "unfair_boost" not in without
    assert policy.host_class("eevdf", ["--boost", "candidate"], kernel) == without
    assert policy.host_class("eevdf", ["--boost=any-mode"], kernel) == without
    assert policy.host_class("eevdf", ["--boost", "candidate,any-mode,unfair"], kernel)["unfair_boost"]
    any_mode, unfair = (kernel_settings(["--boost", cure]) for cure in ("any-mode", "unfair"))
    assert policy.kvm_of(kernel, any_mode) == kvm | {"asks_kernel_only": False}
    assert policy.kvm_of(kernel, unfair) == kvm


def test_a_cure_reaches_kvm_in_a_run() -> None:
    scenario = Scenario.load(REPO / "scenarios/smp-2x2.toml")

    def asks_kernel_only(name: str, *args: str) -> list[bool]:
        made = Run(scenario, {}, policy=name, args=args).as_dict()
        return [vm["kvm"]["asks_kernel_only"] for vm in made["vms"]]

    assert all(asks_kernel_only("eevdf", "--boost", "unfair"))
    assert not any(asks_kernel_only("eevdf", "--boost", "any-mode"))
    # Cohort's own boosts are in its BPF programs.
    assert all(asks_kernel_only("cohort", "--boost", "any-mode"))


@pytest.mark.parametrize(
    "args",
    [
        ["--cgroup-mode"],
        ["--cgroup-mode", "best"],
        ["--base-slice-us", "99"],
        ["--base-slice-us", "٣٠٠٠"],
        ["--latency-us", "1000001"],
        ["--min-granularity-us", "0"],
        ["--vm-cgroups", "off"],
        ["--boost", "off"],
        ["--boost", ""],
        ["smp"],
    ],
)
def test_the_kernel_takes_no_other_arguments(args: list[str]) -> None:
    with pytest.raises(BadInput, match="is not allowed for eevdf: must be of --cgroup-mode MODE"):
        policy.host_class("eevdf", args, "7.3")


@pytest.mark.parametrize(
    ("name", "args", "kernel", "said"),
    [
        ("nobody", [], "7.3", 'policy "nobody" is not known to the simulator: must be one of eevdf, cohort, '),
        ("cohort", ["--stats", "1"], "7.3", "--stats is not known: must be of --placement, "),
        ("cohort", ["--slice-us"], "7.3", "--slice-us: its value is missing"),
        ("cohort", ["--slice-us", "99"], "7.3", '--slice-us: "99" is not allowed: must be whole microseconds from 100'),
        ("cohort", ["--slice-us", "١٢٣"], "7.3", "must be whole microseconds from 100"),
        ("cohort", ["--lag-us", "0"], "7.3", '--lag-us: "0" is not allowed: must be whole microseconds from 1000'),
        (
            "cohort",
            ["--slice-us", "300"],
            "7.3",
            "--boost-slice-us 400 (the default) contradicts --slice-us 300: --boost-slice-us must be at most --slice",
        ),
        (
            "cohort",
            ["--starve-us=9000", "--slice-us=10000"],
            "7.3",
            "--slice-us 10000 contradicts --starve-us 9000: --slice-us must be at most --starve-us",
        ),
        ("cohort", ["--boost", "unfair"], "7.3", '--boost: "unfair" alone boosts nobody'),
        ("cohort", ["--boost", "on"], "7.3", '--boost: "on" is not allowed: must be one of candidate, '),
        ("cohort", ["--order", "task", "--gang", "aligned"], "7.3", "--gang aligned needs --order vm"),
        (
            "cohort",
            ["--spin", "off", "--boost", "candidate"],
            "7.3",
            "--boost candidate needs --spin boost (it is off): they are its kinds",
        ),
        ("sbco", ["--sbco-alpha", "3/2"], "7.3", '--sbco-alpha: "3/2" is not allowed: must be a number from 0.01 to 1'),
        ("sbco", ["--sbco-alpha", "1/0"], "7.3", '--sbco-alpha: "1/0" is not allowed: must be a number from 0.01 to 1'),
        ("cohort", ["--sbco-alpha", "1/2"], "7.3", "--sbco-alpha needs --order sbco (it is vm): no other has an alpha"),
        ("vtime", ["--spin", "prefer", "--order", "sedf"], "7.3", "--spin prefer needs --order other than credit or s"),
        ("vtime", ["--order", "sbco"], "7.3", "--order sbco needs --placement balance (it is any)"),
        ("cohort", ["--gang", "partial"], "7.3", "--gang partial needs --sets: without, nobody is in a set"),
        ("strict", ["--sets", "x"], "7.3", "--sets needs --gang partial or partial-held (it is strict)"),
        ("partial", ["--split", "2"], "7.3", "--split needs --gang partial-auto (it is partial)"),
        ("partial-auto", ["--split", "0.9"], "7.3", '--split: "0.9" is not allowed: must be a number from 1 to 100'),
        ("partial-auto", ["--split", "x"], "7.3", '--split: "x" is not allowed: must be a number from 1 to 100'),
        (
            "partial-auto",
            ["--faults-per-s", "500"],
            "7.3",
            "--faults-per-s needs --traffic faults or both (it is interrupts): interrupts need no faults",
        ),
        (
            "partial-auto",
            ["--traffic", "both", "--faults-per-s", "99"],
            "7.3",
            '--faults-per-s: "99" is not allowed: must be a whole number from 100 to 1000000',
        ),
        ("cohort", ["--skew-us", "3000"], "7.3", "--skew-us needs --gang relaxed (it is aligned)"),
        ("cohort", ["--guard-keep-us", "99"], "7.3", "--guard-keep-us needs --guard halted (it is off)"),
        ("cohort", ["--guard-grace-us", "999"], "7.3", "--guard-grace-us needs --guard kernel-mode (it is off)"),
        (
            "strict",
            ["--boost-slice-us", "400"],
            "7.3",
            "--boost-slice-us needs --spin boost or prefer (it is off), or --gang aligned (it is strict): nothing else",
        ),
        ("credit", ["--slice-us", "9000"], "7.3", "--slice-us needs --order other than credit (it is credit), or --g"),
        ("credit", ["--wakeup-gran-us", "9"], "7.3", "--wakeup-gran-us needs --order other than credit (it is credit)"),
        ("sedf", ["--lag-us", "9000"], "7.3", "--lag-us needs --order other than credit or sedf (it is sedf), or --b"),
        ("cohort", ["slice", "5"], "7.3", '"slice" is not allowed: must be a flag'),
        ("eevdf", ["--cgroup-mode=smp", "--vm-cgroups=no"], "7.3", "--cgroup-mode divides the weight of cgroups, and"),
        ("eevdf", ["--cgroup-mode", "max"], "7.3", '--cgroup-mode: "max" is not known to the simulator for kernel 7.3'),
        ("eevdf", ["--cgroup-mode", "smp"], "6.18", '--cgroup-mode: "smp" is not known to the simulator for kernel 6'),
        ("eevdf", ["--base-slice-us", "3000"], "6.5", "--base-slice-us: kernel 6.5 has CFS, which has no base slice"),
        ("eevdf", ["--latency-us", "20000"], "6.6", "--latency-us, --min-granularity-us: kernel 6.6 has EEVDF"),
        ("eevdf", ["--min-granularity-us", "500"], "7.3", "kernel 7.3 has EEVDF: must be older than 6.6"),
        ("eevdf", [], "2.4.20", 'kernel "2.4.20" is not known to the simulator: must be a kernel'),
        ("eevdf", [], "6.99999", 'kernel "6.99999" is not known to the simulator'),
        ("eevdf", [], "newest", 'kernel "newest" is not known to the simulator'),
    ],
)
def test_what_is_wrong_is_named(name: str, args: list[str], kernel: str, said: str) -> None:
    with pytest.raises(PlaceError, match=re.escape(said)):
        policy.host_class(name, args, kernel)
