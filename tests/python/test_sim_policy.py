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


def test_defaults_are_those_of_the_guide() -> None:
    rows = re.findall(r"^\| `--([a-z-]+-us)` \|.*\| (\d+) \| \d+–\d+ \|$", GUIDE, re.MULTILINE)
    assert {name: int(us) for name, us in rows} == policy.DEFAULTS


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


def test_the_kernel_divides_weights_as_it_is_told() -> None:
    assert policy.host_class("eevdf", (), "7.3")["group_weight"] == "auto"
    changed = policy.host_class("eevdf", ["--cgroup-mode=smp", "--base-slice-us", "3000"], "7.3")
    assert (changed["group_weight"], changed["slice_ns"]) == ("smp", 3_000_000)


def test_cfs_turns_are_as_long_as_it_is_told() -> None:
    assert policy.host_class("eevdf", (), "2.6.34") == {
        "class": "fair",
        "variant": "cfs",
        "buddy_hints": False,
        "limits_turns": False,
        "newidle": "migration-cost",
        "idle_search": "target",
        "sleepers_weigh": False,
        "busy_balance": "fixed",
        "imbalance_percent": 125,
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
    "args",
    [
        ["--base-slice-us", "4000", "--base-slice-us=8000"],
        ["--cgroup-mode=smp", "--cgroup-mode", "smp"],
        ["--vm-cgroups", "no", "--boost", "unfair", "--boost", "any-mode"],
    ],
)
def test_the_kernel_takes_an_argument_once(args: list[str]) -> None:
    with pytest.raises(BadInput, match=r"--(base-slice-us|cgroup-mode|boost): is given twice: must be once"):
        policy.host_class("eevdf", args, "7.3")


@pytest.mark.parametrize(
    ("name", "args", "kernel", "said"),
    [
        ("nobody", [], "7.3", 'policy "nobody" is not known to the simulator: must be one of eevdf, cohort, '),
        ("cohort", ["--stats", "1"], "7.3", "--stats is not known: must be of --placement, "),
        ("cohort", ["--slice-us"], "7.3", "--slice-us: its value is missing"),
        ("cohort", ["--slice-us", "4000", "--slice-us=8000"], "7.3", "--slice-us: is given twice: must be once"),
        ("partial", ["--sets", "a", "--sets", "b"], "7.3", "--sets: is given twice: must be once"),
        ("cohort", ["--slice-us", "99"], "7.3", '--slice-us: "99" is not allowed: must be whole microseconds from 100'),
        ("cohort", ["--slice-us", "١٢٣"], "7.3", "must be whole microseconds from 100"),
        ("cohort", ["--slice-us", "9" * 4400], "7.3", "… is not allowed: must be whole microseconds from 100"),
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
