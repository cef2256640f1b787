# SPDX-License-Identifier: GPL-2.0-only
"""The simulator from Python and from the command line."""

import json
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.python.measured import as_measured
from tests.python.two_vms import two_vms

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.results import read_parquet
from cohortlab.sim import Scenario
from cohortlab.sim import hardware as hardwares
from cohortlab.sim import run as simulate
from cohortlab.sim.model import Run as Simulated
from cohortlab.sim.policy import BOOST
from cohortlab.sim.result import TIMELINE_KINDS, Result, Traces

Run = Callable[..., Any]
REPO = Path(__file__).parents[2]
SMALL = two_vms("hackbench", "tlb-flush")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One program beside the load, with everything recorded."""
    path = tmp_path_factory.mktemp("sim") / "small.toml"
    path.write_text(SMALL)
    traces = Traces(1 << 28, 1 << 28, 4_000_000)
    return simulate(path, "tlb-flush", "eevdf", traces=traces)


def test_time_adds_up(beside: Result, path: Path) -> None:
    # On a host without threads of its own all of it is the VMs' or idle; the lab's has some.
    for result, least in ((simulate(path, "tlb-flush", "eevdf", hardware="server"), 1), (beside, 0.98)):
        measured = result.measurement("work")
        used = sum(measured.cpu_s.values()) + measured.host["idle_s"]
        assert least - 1e-9 <= used / (2 * measured.window_s) <= 1 + 1e-9
        assert 0 < measured.wall_s <= measured.window_s
    vms = {row["name"]: row for row in beside.vms.to_pylist()}
    by_vcpu = beside.vcpus.to_pylist()
    assert vms["hog"]["run_ns"] == sum(row["run_ns"] for row in by_vcpu if row["vm"] == "hog")
    assert all(row["run_ns"] + row["ready_ns"] <= beside.end_ns for row in by_vcpu)
    assert all(vm["costop_ns"] <= vm["ready_ns"] for vm in vms.values())


def test_the_timeline_is_what_the_figures_say(beside: Result) -> None:
    table = beside.timeline
    kinds, who = table["kind"].to_numpy(), table["who"].to_numpy()
    lengths = table["end_ns"].to_numpy() - table["start_ns"].to_numpy()
    for row in beside.vcpus.to_pylist():
        task = beside.task_of(row["vm"], row["vcpu"])
        runs = lengths[(kinds == TIMELINE_KINDS.index("run")) & (who == task)]
        waits = lengths[(kinds == TIMELINE_KINDS.index("wait")) & (who == task)]
        assert (runs.sum(), waits.sum()) == (row["run_ns"], row["ready_ns"])


def test_histograms_hold_what_is_counted(beside: Result) -> None:
    counted = {(row["vm"], row["what"]): row["count"] for row in beside.distributions.to_pylist()}
    held: dict[tuple[str, str], int] = {}
    for row in beside.histograms.to_pylist():
        held[row["vm"], row["what"]] = held.get((row["vm"], row["what"]), 0) + row["count"]
    assert held == {key: count for key, count in counted.items() if count}
    assert counted["work", "shootdown"] > 0


def test_the_same_seed_is_the_same_run_on_any_thread(path: Path) -> None:
    def once(seed: int) -> tuple[str, dict[str, Any]]:
        result = simulate(path, "tlb-flush", "cohort", seed=seed)
        return result.fingerprint, result.about

    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(once, [1, 2, 1, 2]))
    assert runs[0] == runs[2]
    assert runs[1] == runs[3]
    assert runs[0][0] != runs[1][0]


def test_alone_is_faster(path: Path, beside: Result) -> None:
    alone = simulate(path, "tlb-flush", "eevdf", alone=True)
    assert alone.measurement("work").wall_s < beside.measurement("work").wall_s
    # An idle guest's kernel still has ticks and timers.
    assert alone.measurement("work").cpu_s["hog"] < 0.1 * alone.measurement("work").window_s


def test_counters_are_of_the_programs_own_time(path: Path) -> None:
    found = simulate(path, "tlb-flush", "cohort")
    measured = found.measurement("work")
    program = found.about["programs"][0]
    window = program["window"]
    assert window["length_ns"] == program["end_ns"] - program["start_ns"]
    assert measured.window_s == pytest.approx(window["length_ns"] / 1e9)
    assert measured.guest == {"tlb_shootdowns": window["ipis_taken"]["1"], "steal_s": window["ready_ns"] / 1e9}
    assert measured.why["hog"]["run_ns"] == window["vms"]["1"]["run_ns"] < found.about["figures"]["vms"][1]["run_ns"]
    # All that `cohort run --json` counts.
    counters = re.findall(r"^\tSTAT_(\w+)", (REPO / "bpf" / "intf.h").read_text(), re.MULTILINE)
    assert set(found.about["stats"]) == set(measured.stats) == {name.lower() for name in counters}
    # The load alone has switched before.
    assert 0 < measured.stats["switches"] < found.about["stats"]["switches"]


def test_compare_in_the_simulator(cohortlab: Run, path: Path) -> None:
    ran = cohortlab("compare", path, "--on", "sim", "--rounds", 2, "--json", "--out", "out")
    assert ran.code == 0, ran.err
    objects = json.loads(ran.out)
    assert [(o["program"], o["policy"]) for o in objects] == [
        ("hackbench", "eevdf"),
        ("hackbench", "cohort"),
        ("tlb-flush", "eevdf"),
        ("tlb-flush", "cohort"),
    ]
    assert all(o["rounds"] == 2 and o["slowdown"] > 0.9 for o in objects)
    kept = read_parquet(Path("out/measurements.parquet"))
    assert kept.places["ipi"]["place"] == "simulator"
    assert Path("out/report.html").read_text().startswith("<!doctype html>")
    again = cohortlab("compare", path, "--on", "sim", "--rounds", 2, "--json", "--out", "again")
    assert again.out == ran.out


def test_explain_draws_and_traces(cohortlab: Run, path: Path) -> None:
    ran = cohortlab(
        "explain",
        path,
        "--program",
        "tlb-flush",
        "--policy",
        "eevdf",
        "--perfetto",
        "t.perfetto",
        "--ftrace",
        "t.txt",
    )
    assert ran.code == 0, ran.err
    assert "PAUSE exits" in ran.out
    assert "written: explain.png, t.perfetto, t.txt" in ran.err
    assert Path("explain.png").read_bytes().startswith(b"\x89PNG")
    assert Path("t.txt").read_text().startswith("cpus=2\n")
    assert Path("t.perfetto").stat().st_size > 1000
    assert cohortlab("explain", path, "--out", "x.svg", "--ms", 5, "--tables", "tables").code == 0
    assert "<svg" in Path("x.svg").read_text()
    tables = {file.stem: pq.read_table(file) for file in Path("tables").glob("*.parquet")}
    assert sorted(tables) == ["distributions", "histograms", "timeline", "vcpus", "vms"]
    assert [table.num_rows for table in (tables["vms"], tables["vcpus"])] == [2, 4]


def test_explain_draws_policies_one_below_the_other(cohortlab: Run, path: Path) -> None:
    args = ("explain", path, "--program", "tlb-flush", "--policy", "eevdf", "--ms", 5)
    ran = cohortlab(*args, "--beside", "cohort", "--beside", "cohort --slice-us 4000", "--out", "x.svg", "--json")
    assert ran.code == 0, ran.err
    several = json.loads(ran.out)
    assert len({one["fingerprint"] for one in several}) == 3
    assert several[0] == json.loads(cohortlab(*args, "--json").out)
    picture = Path("x.svg").read_text()
    assert [picture.count(text) for text in ("pCPU 0", ", eevdf, seed", ", cohort --slice-us 4000, seed")] == [3, 1, 1]
    # One time axis, all of it within the shorter run.
    assert picture.count("ms of simulated time") == 1
    shortest_ms = min(one["outcome"]["end_ns"] for one in several[:2]) / 1e6
    ran = cohortlab(*args, "--beside", "cohort", "--from-ms", shortest_ms + 1)
    assert (ran.code, ran.out) == (2, "")


def test_fidelity_shows_both(cohortlab: Run, path: Path) -> None:
    assert cohortlab("compare", path, "--on", "sim", "--rounds", 2, "--out", "lab").code == 0
    lab = as_measured(Path("lab/measurements.parquet"))
    ran = cohortlab("fidelity", path, "--lab", lab, "--rounds", 2, "--json")
    assert ran.code == 0, ran.err
    fits = json.loads(ran.out)
    assert [fit["error"] for fit in fits] == [0.0] * 4  # against itself
    shown = cohortlab("fidelity", path, "--lab", lab, "--rounds", 1)
    assert re.search(r"of 4 within 15%, [0-4] between two rounds of the lab;", shown.out)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["compare", "SCENARIO", "--on", "sim", "--kernel", "2.4"], 'kernel "2.4" is not known to the simulator'),
        (
            ["compare", "SCENARIO", "--on", "sim", "--kernel", "2.6.38"],
            "guest.ple: true is not allowed with kernel 2.6.38, whose KVM yields to nobody: must be false, or",
        ),
        (
            ["compare", "SCENARIO", "--on", "sim", "--hardware", "none"],
            '--hardware: "none" does not exist: must be one of lab',
        ),
        (
            ["compare", "SCENARIO", "--on", "lab", "--hardware", "lab"],
            "--hardware: only a simulated host can be chosen",
        ),
        (["compare", "SCENARIO", "--on", "sim", "--policy-args", "cohort=--no 1"], "cohort: --no is not known"),
        (
            ["explain", "SCENARIO", "--program", "x"],
            '--program: "x" is not allowed: must be one of canneal, ',
        ),
        (["explain", "SCENARIO", "--policy", "x"], 'policy "x" is not known to the simulator'),
        (["explain", "SCENARIO", "--policy-args", "'"], '--policy-args: "\'" is not allowed: no closing quotation'),
        (["explain", "SCENARIO", "--beside", " "], '--beside: " " is not allowed: must be a policy'),
        (["explain", "SCENARIO", "--beside", "x"], 'policy "x" is not known to the simulator'),
        (["explain", "SCENARIO", "--beside", "vtime", "--ftrace", "x"], "--ftrace: is not allowed with --beside"),
        (["explain", "SCENARIO", "--out", "x.bmp"], "--out: x.bmp: its ending must be one of .png, .svg, .pdf"),
        (["explain", "SCENARIO", "--tables", "no/x"], "--tables: no/x: its folder does not exist"),
        (["explain", "SCENARIO", "--out", "no/x.png"], "--out: no/x.png: its folder does not exist"),
        (["explain", "SCENARIO", "--perfetto", "."], "--perfetto: .: is a folder: must be a file"),
        (["explain", "SCENARIO", "--ftrace", "/proc/x"], "--ftrace: /proc: cannot be written to: "),
        (["explain", "SCENARIO", "--perfetto", "x", "--ftrace", "./x"], "--ftrace: x: is that of --perfetto as well"),
        (["explain", "SCENARIO", "--from-ms", "1e9"], "--from-ms: 1e+09 is not allowed: the run ends at "),
        (["explain", "SCENARIO", "--from-ms", "1e303"], "--from-ms: 1e+303 is not allowed: the run ends at "),
        (["explain", "SCENARIO", "--from-ms", "inf"], "'--from-ms': inf is not a finite number"),
        (["explain", "SCENARIO", "--from-ms", "nan"], "'--from-ms': nan is not a finite number"),
        (["explain", "SCENARIO", "--ms", "nan"], "'--ms': nan is not a finite number"),
        (["explain", "absent.toml"], "absent.toml: cannot be read"),
        (["fidelity", "SCENARIO", "--lab", "absent"], "--lab: absent: cannot be read"),
        (["fidelity", "SCENARIO", "--lab", "SCENARIO"], "is not a measurements.parquet"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(cohortlab: Run, path: Path, args: list[str], said: str) -> None:
    ran = cohortlab(*[path if arg == "SCENARIO" else arg for arg in args])
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err


def test_a_workload_without_a_model_is_named(cohortlab: Run, tmp_path: Path, write_scenario: Run) -> None:
    ran = cohortlab("compare", write_scenario(), "--on", "sim")
    assert (ran.code, ran.out) == (2, "")
    assert 'two.toml: vm[0].programs[0]: there is no model of "spin": must be one of ' in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[machine]\nsockets = 2\ncores_per_socket = 2\n", "machine: has 4 pCPUs, but PATH has host.pcpus = 2"),
        ("[mashine]\n", "mashine: is not a known field: known are description, machine, kvm, guest, task"),
        ("task = 1\n", "h.toml: task: 1 is not allowed: must be [[task]] tables"),
        ("[[task]]\nper_pcpu = true\n", "h.toml: task[0].name: is missing: must be a text"),
        ('[[task]]\nname = "a"\nrun_us = 1\n', 'task[0].run_us: is not a known field: did you mean "run_ns"?'),
        ('[[task]]\nname = "a"\nrun_ns = 1\n', "task[0]: one of run_ns and sleep_ns is missing: must be both or none"),
        ('[[task]]\nname = "a"\ncpus = [2]\n', "h.toml: task[0].cpus: has one too high: must be from 0 to 1"),
        ('[[task]]\nname = "a"\ncpus = [1]\nper_pcpu = true\n', "cpus: is not allowed with per_pcpu: must be left out"),
        ("[machine]\nsince = 2026-01-01\n", "h.toml: machine: has a date or a time: must be numbers, texts"),
        ("kvm = 1\n", "kvm: must be a table"),
        ('[kvm]\nple = "off"\n', 'h.toml: kvm.ple: "off" is not allowed: must be a table'),
        ("[kvm]\nwells = 1\n", "h.toml: kvm.wells: 1 is not allowed: must be a table"),
        ('[kvm]\ntsc_mhz = "2500"\n', 'h.toml: kvm.tsc_mhz: "2500" is not allowed: must be a whole number'),
        ("[kvm.ple]\npause_cycles = true\n", "kvm.ple.pause_cycles: true is not allowed: must be a whole number"),
        ("[kvm]\nple_windows = 1\n", "unknown field `ple_windows`"),
    ],
)
def test_wrong_hardware_is_named(path: Path, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "h.toml").write_text(text)
    with pytest.raises(BadInput, match=re.escape(said.replace("PATH", str(path)))):
        simulate(path, hardware=str(tmp_path / "h.toml"))


def test_hardware_that_only_the_simulator_can_refuse_is_bad_input(cohortlab: Run, path: Path, tmp_path: Path) -> None:
    hardware, out = tmp_path / "h.toml", tmp_path / "out"
    hardware.write_text("[machine.costs]\nrefill_turn_ns = 4_000_000_000_000\n")
    ran = cohortlab("compare", str(path), "--on", "sim", "--hardware", str(hardware), "--out", str(out))
    assert (ran.code, ran.out, out.exists()) == (2, "", False)
    assert f"{path} on {hardware}: machine.costs.refill_turn_ns: 4000000000000 is not allowed: must be at" in ran.err


def test_hardware_says_what_else_runs_on_the_host(path: Path, tmp_path: Path) -> None:
    work = "run_ns = 2_000_000\nsleep_ns = 2_000_000\n"
    (tmp_path / "quiet.toml").write_text("")
    (tmp_path / "busy.toml").write_text(f'[[task]]\nname = "a"\nper_pcpu = true\n{work}[[task]]\nname = "b"\n{work}')
    quiet = simulate(path, alone=True, hardware=str(tmp_path / "quiet.toml"))
    busy = simulate(path, alone=True, hardware=str(tmp_path / "busy.toml"))
    others = [task["name"] for task in busy.tasks if task["vm"] is None]
    assert others == ["a/0", "a/1", "b"]
    assert all(task["vm"] is not None for task in quiet.tasks)
    assert busy.measurement("work").value > quiet.measurement("work").value


def test_every_shipped_scenario_and_hardware_can_be_simulated() -> None:
    simulated = set()
    for path in sorted((REPO / "scenarios").glob("*.toml")):
        for name in hardwares.names():
            scenario, machine = Scenario.load(path), hardwares.load(name).machine
            shape = [machine.get(key, 1) for key in ("sockets", "cores_per_socket", "threads_per_core")]
            # Hardware with a shape of its own is that of one host's size only.
            if not machine.get("sockets") or math.prod(shape) == scenario.host.pcpus:
                assert simulate(scenario, alone=True, hardware=name).measurement("work").value > 0
                simulated.add(name)
    assert simulated == set(hardwares.names())


@pytest.mark.parametrize(
    ("window_us", "kvm", "called"),
    [
        (100, {}, False),
        (None, {}, True),
        (100, {"ple": {"mode": "off"}}, True),
        (None, {"wells": {"instructions": 0}}, True),
        (None, {"wells": {"instructions": 100_000}}, False),
    ],
)
def test_the_default_boosts_who_is_called_where_nobody_is_caught(
    path: Path, window_us: int | None, kvm: dict[str, Any], called: bool
) -> None:
    chosen = scenarios.load(path).with_ple(window_us)
    hardware = hardwares.of_data({"kvm": kvm}, path)
    made = Simulated(chosen, {"work": "tlb-flush"}, "cohort", hardware=hardware).as_dict()
    assert bool(made["policy"]["knobs"]["boost"] & BOOST["ipi"]) == called


def test_a_guest_that_flushes_by_hypercall_knows_no_steal_time_and_sends_so_too(path: Path) -> None:
    def made(tlb: Any, **tables: dict[str, Any]) -> tuple[bool, str]:
        chosen = scenarios.load(path).with_tlb(tlb)
        hardware = hardwares.of_data(tables, path)
        vm = Simulated(chosen, {"work": "tlb-flush"}, hardware=hardware).as_dict()["vms"][0]
        return vm["kvm"].get("steal_time", True), vm["guest"]["send_ipi"]

    assert made("ipi") == (True, "shorthand")
    assert made("hypercall") == (False, "hypercall")
    # A hypercall of the guest's own, as Shoot4U's.
    assert made("hypercall", kvm={"steal_time": True}, guest={"send_ipi": "each"}) == (True, "each")


def test_an_old_kernel_has_its_polling_and_no_pause_loop_exits(path: Path) -> None:
    def polling(kernel: str, kvm: dict[str, Any]) -> dict[str, int]:
        hardware = hardwares.of_data({"kvm": kvm}, path)
        made = Simulated(scenarios.load(path).with_ple(None), {"work": "tlb-flush"}, kernel=kernel, hardware=hardware)
        found: dict[str, int] = made.as_dict()["vms"][0]["kvm"]["halt_poll"]
        return found

    assert polling("2.6.34", {}) == {"shrink": 0, "max_ns": 0}
    assert polling("6.1", {"halt_poll": {"max_ns": 400_000}}) == {"shrink": 0, "max_ns": 400_000}
    assert polling("6.1", {"halt_poll": {"shrink": 4}}) == {"shrink": 4}


def test_a_window_is_counted_in_pauses_where_the_processor_does(path: Path) -> None:
    chosen = scenarios.load(path).with_ple(100)
    run = Simulated(chosen, {"work": "tlb-flush"}, hardware=hardwares.load("server-amd"))
    # 250,000 cycles, and a PAUSE every 65.
    assert run.as_dict()["vms"][0]["kvm"]["ple"] == {"mode": "any", "pause_cycles": 65, "window_pauses": 3_846}


PAIR = """
name = "pair"
[host]
pcpus = 2
[defaults]
policies = ["eevdf", "vtime"]
hardware = "server"
kernel = "6.1"
[[vm]]
name = "a"
vcpus = 2
memory_mb = 256
programs = ["tlb-flush"]
vcpu_affinity = [0, 1]
[[vm]]
name = "b"
count = 2
vcpus = 1
memory_mb = 256
programs = ["quick"]
"""
QUICK = """
name = "quick"
[metric.rate]
done = "step"
value = 2
unit = "steps/s"
[[thread]]
name = "t"
times = 50
steps = [{ compute = "1ms" }, { done = "step" }]
"""


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    (tmp_path / "workloads" / "models").mkdir(parents=True)
    (tmp_path / "workloads" / "models" / "quick.toml").write_text(QUICK)
    (tmp_path / "pair.toml").write_text(PAIR)
    return tmp_path / "pair.toml"


def test_several_programs_run_until_the_last_has_ended(pair: Path) -> None:
    together = simulate(pair, "b-2:quick", "vtime")
    a, b = together.measurement("a"), together.measurement("b-2")
    assert together.run.running == {"a": "tlb-flush", "b-1": "quick", "b-2": "quick"}
    assert together.end_ns / 1e9 >= 1 + a.wall_s > 1 + 2 * b.wall_s
    # 100 units' worth of its first 50 steps, however often it did them.
    assert b.value == pytest.approx(100 / b.wall_s)
    alone = simulate(pair, "b-2:quick", "vtime", alone=True)
    assert alone.run.running == {"b-2": "quick"}
    assert alone.measurement("b-2").wall_s < b.wall_s
    # It went on as a load: a vCPU each of three for two pCPUs.
    used = {row["name"]: row["cpu_ns"] for row in together.vms.to_pylist()}
    assert used["b-2"] > 0.4 * a.wall_s * 1e9


def test_compare_several_programs(cohortlab: Run, pair: Path) -> None:
    ran = cohortlab("compare", pair, "--on", "sim", "--rounds", 1, "--json", "--out", "out")
    assert ran.code == 0, ran.err
    objects = json.loads(ran.out)
    labels = ["a:tlb-flush", "b-1:quick", "b-2:quick"]
    assert [(o["program"], o["policy"], o["vm"]) for o in objects] == [
        (label, policy, label.split(":")[0]) for label in labels for policy in ("eevdf", "vtime")
    ]
    assert all(o["ideal_slowdown"] >= 1 for o in objects)
    assert objects[0]["neighbours"].keys() == {"b-1", "b-2"}
    kept = read_parquet(Path("out/measurements.parquet"))
    assert kept.places["ipi"]["hardware"] == "server"
    assert kept.places["ipi"]["kernel"].endswith("6.1: cfs")
    fits = cohortlab("fidelity", pair, "--lab", as_measured(Path("out/measurements.parquet")), "--rounds", 1, "--json")
    assert [fit["error"] for fit in json.loads(fits.out)] == [0.0] * 6


def test_options_go_before_the_scenarios_defaults(cohortlab: Run, pair: Path) -> None:
    args = ("--policies", "vtime", "--hardware", "lab", "--kernel", "6.12", "--rounds", 1, "--programs", "ep,quick")
    ran = cohortlab("compare", pair, "--on", "sim", *args, "--json", "--out", "out")
    assert ran.code == 0, ran.err
    assert [(o["program"], o["policy"]) for o in json.loads(ran.out)][:2] == [("a:ep", "vtime"), ("b-1:ep", "vtime")]
    place = read_parquet(Path("out/measurements.parquet")).places["ipi"]
    assert (place["hardware"], place["kernel"].endswith("6.12: eevdf")) == ("lab", True)


def test_who_arrives_later_or_sleeps_disturbs_less(tmp_path: Path) -> None:
    took = {}
    for name, more in {"all": "", "late": "start_s = 0.4\n", "sleepy": "run_s = 0.05\nsleep_s = 0.05\n"}.items():
        path = tmp_path / f"{name}.toml"
        path.write_text(SMALL.replace('load = "cpu-hog"', f'load = "cpu-hog"\n{more}'))
        took[name] = simulate(path, "tlb-flush", "vtime").measurement("work").wall_s
    assert took["late"] < took["all"]
    assert took["sleepy"] < took["all"]


@pytest.mark.parametrize("policy", ["eevdf", "cohort"])
def test_a_cap_holds_under_every_class(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "capped.toml"
    path.write_text(SMALL.replace('load = "cpu-hog"', 'load = "cpu-hog"\ncap_pcpus = 0.5'))
    found = simulate(path, "hackbench", policy).measurement("work")
    # A window that ends within a period has up to one period's quota more, or less.
    assert found.cpu_s["hog"] == pytest.approx(0.5 * found.window_s, abs=0.05)


def test_rt_app_from_the_command_line(cohortlab: Run, path: Path) -> None:
    Path("mine.json").write_text('{"tasks": {"a": {"instance": 2, "loop": 20, "run": 1000, "sleep": 100}}}')
    ran = cohortlab("compare", path, "--on", "sim", "--programs", "mine.json", "--rounds", 1, "--json", "--out", "o")
    assert ran.code == 0, ran.err
    assert {o["program"] for o in json.loads(ran.out)} == {"mine.json"}
    assert cohortlab("explain", path, "--program", "mine.json", "--ms", 5).code == 0
    Path("mine.json").write_text('{"tasks": {"a": {"loop": 1, "fork": "b"}}}')
    ran = cohortlab("compare", path, "--on", "sim", "--programs", "mine.json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "mine.json: tasks.a.fork: is not modelled; allowed: run," in ran.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"server"', '"servers"', 'pair.toml: defaults.hardware: "servers" does not exist: must be one of lab'),
        ('"server"', '"absent.toml"', "absent.toml: cannot be read"),
        ('"6.1"', '"2.4"', 'kernel "2.4" is not known to the simulator'),
        ('"vtime"]', '"vtyme"]', 'pair.toml: defaults: --policies: unknown policy "vtyme"'),
    ],
)
def test_wrong_defaults_are_one_line_and_code_2(cohortlab: Run, pair: Path, old: str, new: str, said: str) -> None:
    pair.write_text(PAIR.replace(old, new))
    ran = cohortlab("compare", pair, "--on", "sim", "--out", "out")
    assert (ran.code, ran.out, ran.err.count("\n"), Path("out").exists()) == (2, "", 1, False), ran.err
    assert said in ran.err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("name = 1\n", "quick.toml: thread: is missing: must be [[thread]] tables"),
        (QUICK.replace('"quick"', '"slow"'), 'quick.toml: name: must be "quick", the file\'s name'),
        (QUICK.replace("1ms", "1 ms."), "quick.toml: thread[0].steps[0].compute: invalid value"),
    ],
)
def test_a_model_of_ones_own_that_is_wrong(cohortlab: Run, pair: Path, model: str, said: str) -> None:
    (pair.parent / "workloads" / "models" / "quick.toml").write_text(model)
    ran = cohortlab("compare", pair, "--on", "sim", "--out", "out")
    assert (ran.code, ran.out, ran.err.count("\n"), Path("out").exists()) == (2, "", 1, False), ran.err
    assert said in ran.err
