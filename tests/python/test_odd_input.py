# SPDX-License-Identifier: GPL-2.0-only
"""Input that is odd: empty, from a pipe, with characters and depths that nobody means, and very long."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.python.test_recorded import HOST_LINES
from tests.python.two_vms import two_vms, with_quick

from cohortlab import models
from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.recorded import recording
from cohortlab.recorded import scenario as makes
from cohortlab.sim import hardware, picture
from cohortlab.sim import run as simulate
from cohortlab.sim.result import Traces
from cohortlab.sweep import axes, chunks, plan

Run = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return with_quick(tmp_path)


def refused(ran: Any, said: str) -> None:
    """One line, that says it."""
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(("compare", option) for option in ("--kernel", "--guest-kernel", "--hardware")),
        *((command, option) for command in ("explain", "advise", "import") for option in ("--kernel", "--hardware")),
    ],
)
def test_who_names_nothing_does_not_get_the_default(cohortlab: Run, path: Path, command: str, option: str) -> None:
    refused(cohortlab(command, path, option, ""), f"Invalid value for '{option}': it is empty")


def test_neither_does_a_file_or_a_program(path: Path) -> None:
    with pytest.raises(BadInput, match='"" does not exist: must be one of'):
        hardware.of(scenarios.load(path), "")
    path.write_text(f'{path.read_text()}[defaults]\nkernel = ""\n')
    with pytest.raises(BadInput, match=r'defaults\.kernel: "" is not allowed: must be a kernel'):
        scenarios.load(path)


@pytest.mark.parametrize("axis", ["hardware=", "hardware=lab,", "policy=eevdf,,cohort"])
def test_an_axis_without_a_value(cohortlab: Run, path: Path, axis: str) -> None:
    field = axis.partition("=")[0]
    refused(cohortlab("sweep", path, "--axis", axis, "--out", "out"), f"--axis: {field}: has a value that is empty")


def test_a_recording_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    text = "\n".join(["cpus=1", *HOST_LINES, ""]).encode()
    (tmp_path / "host.txt").write_bytes(text)
    reads, writes = os.pipe()
    os.write(writes, text)
    os.close(writes)
    try:
        assert recording.load(Path(f"/dev/fd/{reads}")).about == recording.load(tmp_path / "host.txt").about
    finally:
        os.close(reads)


def test_of_which_vcpus_alone_it_is_known_where_they_may_run_is_a_remark() -> None:
    vm, pcpus = {"vcpus": [{"vcpu": 0, "cpus": [1]}]}, {0: 0, 1: 1}
    remarks: list[str] = []
    assert makes._limits("a", vm, pcpus, 1, remarks) == ["vcpu_affinity = [[1]]"]
    assert remarks == []
    assert makes._limits("a", vm, pcpus, 2, remarks) == []
    assert remarks == ["a: where its vCPUs may run is known of 1 of 2: in the scenario all may run everywhere"]
    # Without "cpus" a thread was gone or hidden; with none in it, it may run everywhere.
    vm["vcpus"].append({"vcpu": 1})
    assert makes._limits("a", vm, pcpus, 2, remarks) == []
    assert remarks[1:] == remarks[:1]
    del vm["vcpus"][0]
    assert makes._limits("a", vm, pcpus, 1, remarks) == []
    assert remarks[2:] == ["a: where its vCPUs may run is not known: in the scenario all may run everywhere"]
    vm["vcpus"] = [{"vcpu": 0, "cpus": []}]
    assert makes._limits("a", vm, pcpus, 1, remarks) == []
    assert len(remarks) == 3


def test_a_name_with_a_character_that_no_file_can_have(path: Path) -> None:
    path.write_text(two_vms("a\\u0000.json"))
    with pytest.raises(BadInput, match=r"small\.toml: has a text with the character U\+0000: must be without$"):
        scenarios.load(path)
    # That is none: in a text of this kind a backslash is one.
    path.write_text(f"description = 'not \\u0000'\n{two_vms('quick')}")
    assert scenarios.load(path).description == "not \\u0000"


def test_files_that_are_too_deep_to_be_read(path: Path) -> None:
    path.write_text(f"x = {'[' * 5_000}")
    with pytest.raises(BadInput, match=r"small\.toml: "):
        scenarios.load(path)
    deep = path.parent / "deep.json"
    deep.write_text('{"tasks": ' + '{"a": ' * 100_000)
    with pytest.raises(BadInput, match=r"deep\.json: is not JSON: "):
        models.read(deep)


def test_files_that_an_editor_on_windows_has_saved(path: Path) -> None:
    """Each begins with a byte-order mark, and its lines end with CR LF."""
    before = simulate(path, policy="eevdf").fingerprint
    for file in path.parent.rglob("*.toml"):
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes().replace(b"\n", b"\r\n"))
    assert "\ufeff" not in scenarios.load(path).text
    assert simulate(path, policy="eevdf").fingerprint == before
    rt_app = path.parent / "x.json"
    rt_app.write_bytes(codecs.BOM_UTF8 + b'{"tasks": {"a": {"loop": 3, "run": 5}}}')
    assert models.read(rt_app).name == "x"
    # One that becomes a part of a recorded scenario.
    (path.parent / "own.toml").write_bytes(codecs.BOM_UTF8 + b"[machine]\r\n")
    pcpus = [{"cpu": cpu, "core": cpu, "llc": 0, "node": 0} for cpu in (0, 1)]
    makes._hardware(path.parent, {"header": {"pcpus": pcpus}}, str(path.parent / "own.toml"))
    machine = hardware.load(str(path.parent / "hardware.toml")).machine
    assert machine == {"sockets": 1, "cores_per_socket": 2, "threads_per_core": 1}


def test_what_is_in_the_way_of_tables_is_told_of_their_option(cohortlab: Run, path: Path) -> None:
    Path("tables/vms.parquet").mkdir(parents=True)
    ran = cohortlab("explain", path, "--ms", 1, "--tables", "tables")
    refused(ran, "cohortlab: --tables: tables/vms.parquet: is in the way: must be a file")


def test_a_damaged_note_of_whose_folder_it_is(cohortlab: Run, path: Path) -> None:
    Path("out").mkdir()
    Path("out/sweep.json").write_bytes(b"\xff")
    refused(cohortlab("sweep", path, "--axis", "seed=1", "--out", "out"), "--out: out: has another sweep")


def test_a_title_is_no_formula(path: Path) -> None:
    result = simulate(path, policy="eevdf", traces=Traces(timeline_rows_max=1_000))
    drawn = path.parent / "x.svg"
    picture.draw([result], picture.Window(0, picture.NS_PER_MS), [r"$\frac$"], drawn)
    assert r">$\frac$</text>" in drawn.read_text(encoding="utf-8")


def test_short_windows_of_a_long_run_are_not_counted_one_by_one() -> None:
    kind, long_ns, at_ns = picture.TIMELINE_KINDS.index("spin"), 10**18, 7 * 10**17
    spins = pa.table({"kind": [kind, kind], "start_ns": [5_000, at_ns], "end_ns": [5_100, at_ns + 900]})
    one: Any = SimpleNamespace(end_ns=long_ns, timeline=spins)
    assert picture.busiest([one], 1_000) == picture.Window(at_ns, at_ns + 1_000)
    # Two together, of which the other spins more where this one spins less.
    more = pa.table({"kind": [kind], "start_ns": [5_200], "end_ns": [6_100]})
    other: Any = SimpleNamespace(end_ns=long_ns, timeline=more)
    assert picture.busiest([one, other], 1_000) == picture.Window(5_000, 6_000)
    nobody: Any = SimpleNamespace(end_ns=long_ns, timeline=spins.slice(0, 0))
    assert picture.busiest([nobody], 1_000).start_ns == (long_ns - 1_000) // 2


def test_a_figure_that_no_vm_has_is_of_the_same_type_as_elsewhere(path: Path) -> None:
    elsewhere = simulate(path, policy="eevdf").vms
    path.write_text(f"{path.read_text()}affinity = [0]\n")
    pinned = simulate(path, policy="eevdf").vms
    assert pinned["lag_behind_ns"].to_pylist() == [None, None]
    assert pinned.schema == elsewhere.schema
    assert pa.concat_tables([elsewhere, pinned]).num_rows == 4


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("scenario.vm.hog.weight=50,100", "scenario.vm[1].weight=200"), '"scenario.vm[1].weight" sets what "scen'),
        (("model.quick.thread[0].count=1", "model.quick.thread.t.count=2"), '"model.quick.thread.t.count" sets what'),
        (("scenario.guest.ple=true", 'scenario.guest={tlb = "kvm-pv"}'), '"scenario.guest" sets what "scenario.gue'),
    ],
)
def test_an_axis_that_undoes_another(cohortlab: Run, path: Path, texts: tuple[str, str], said: str) -> None:
    options = [word for text in texts for word in ("--axis", text)]
    refused(cohortlab("sweep", path, *options, "--out", "out"), f"--axis: {said}")


def test_a_table_stays_what_it_is_when_the_next_axis_sets_a_field_of_it(path: Path) -> None:
    texts = ('scenario.guest={tlb = "kvm-pv"}', "scenario.guest.ple=true,false")
    planned = plan.make(path, axes.of_options(texts, None))
    rows = [row for number in range(planned.points) for row in chunks.simulate_point(planned, number)]
    assert [row["axis scenario.guest"] for row in rows] == ['{"tlb": "kvm-pv"}'] * 2
    guests = [planned.point(number).run.scenario.guest for number in range(planned.points)]
    assert [(guest.tlb, guest.ple) for guest in guests] == [("kvm-pv", True), ("kvm-pv", False)]
