# SPDX-License-Identifier: GPL-2.0-only
"""A place without kernels: it does what a test tells it, and remembers what it was asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cohortlab import cli, commands, scenario
from cohortlab.places import Measurement, Place, ProgressFn
from cohortlab.scenario import Scenario

WORKLOADS = {
    "spin": 'name = "spin"\ntitle = "Spin"\ncommand = "spin 1"\n[metric]\nkind = "elapsed"\n',
    "chat": "name = 'chat'\ntitle = 'Chat'\ncommand = 'chat'\n"
    "[metric]\nkind = 'elapsed'\npattern = 'Time: ([0-9.]+)'\n",
    "serve": "name = 'serve'\ntitle = 'Serve'\ncommand = 'serve'\n"
    "[metric]\nkind = 'rate'\npattern = 'Throughput ([0-9.]+)'\nunit = 'MB/s'\n",
    "burn": 'name = "burn"\ntitle = "Burn"\ncommand = "burn"\nbackground = true\n',
}

SCENARIO = """
name = "two"
description = "two VMs"
[host]
pcpus = 2
[[vm]]
name = "work"
vcpus = 2
memory_mb = 256
programs = ["spin", "serve"]
[[vm]]
name = "hog"
vcpus = 2
memory_mb = 256
load = "burn"
"""


@dataclass
class FakePlace:
    """A place whose figures are set by hand.

    Attributes:
        took_s: seconds by (policy, program), "alone" included; 1 where nothing is set. A rate is 100 divided by it.
        demand: pCPUs that the program's VM uses alone.
        work_share: pCPUs that it uses beside the neighbour, which gets the rest.
        overhead: pCPUs that the host itself uses while there is load.
        idle: pCPUs that are idle while there is load.
        raises: exceptions by number of the measure() call, from 0, over the life of the place.
        why: what is counted of each VM, whatever runs.
        log: what was asked, in order.
    """

    took_s: dict[tuple[str, str], float] = field(default_factory=dict)
    demand: float = 2.0
    work_share: float = 1.0
    overhead: float = 0.0
    idle: float = 0.0
    raises: dict[int, BaseException] = field(default_factory=dict)
    raises_leaving_policy: dict[str, BaseException] = field(default_factory=dict)
    raises_opening: list[BaseException] = field(default_factory=list)
    why: dict[str, dict[str, float]] = field(default_factory=dict)
    log: list[tuple[str, ...]] = field(default_factory=list)
    pcpus: int = 2
    description: dict[str, str] = field(default_factory=lambda: {"kernel": "9.9.9-test", "accelerator": "none"})
    scenario: Scenario | None = None
    now: str = "eevdf"
    loads: list[str] = field(default_factory=list)
    measured: int = 0

    @contextmanager
    def open(self, scenario: Scenario, *, kernel: str | None, progress: ProgressFn) -> Iterator[Place]:
        self.log.append(("open", scenario.guest.tlb, str(kernel)))
        if self.raises_opening:
            raise self.raises_opening.pop(0)
        self.scenario = scenario
        progress("booting", 0.5)
        try:
            yield self
        finally:
            self.log.append(("close",))

    @contextmanager
    def policy(self, name: str, args: Sequence[str] = ()) -> Iterator[None]:
        self.log.append(("policy", name, *args))
        self.now = name
        try:
            yield
        finally:
            self.now = "eevdf"
            if name in self.raises_leaving_policy:
                raise self.raises_leaving_policy[name]

    @contextmanager
    def background(self, vm: str, workload: str) -> Iterator[None]:
        self.log.append(("background", vm, workload))
        self.loads.append(vm)
        try:
            yield
        finally:
            self.loads.remove(vm)

    def measure(self, vm: str, workload: str) -> Measurement:
        assert self.scenario is not None
        number, self.measured = self.measured, self.measured + 1
        policy = self.now if self.loads else "alone"
        self.log.append(("measure", policy, workload))
        if number in self.raises:
            raise self.raises[number]
        took_s = self.took_s.get((policy, workload), 1.0)
        is_rate = self.scenario.workloads[workload].is_rate
        share = self.work_share if self.loads else self.demand
        rest = self.pcpus - share - self.overhead - self.idle if self.loads else 0.0
        return Measurement(
            value=100 / took_s if is_rate else took_s,
            wall_s=took_s,
            window_s=took_s,
            cpu_s={vm: share * took_s, "hog": rest * took_s},
            stats={"boosts": 3.0} if policy == "cohort" else {},
            guest={"tlb_shootdowns": (0 if self.scenario.guest.tlb == "hypercall" else 500) * took_s},
            host={"idle_s": self.idle * took_s},
            why=self.why,
        )

    def measure_together(self, turn: Mapping[str, str]) -> dict[str, Measurement]:
        return {vm: self.measure(vm, workload) for vm, workload in turn.items()}

    def reset(self) -> None:
        self.log.append(("reset",))


@pytest.fixture
def place() -> FakePlace:
    return FakePlace()


@pytest.fixture
def write_scenario(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a scenario file with workloads next to it."""
    folder = tmp_path / "workloads"
    folder.mkdir()
    for name, text in WORKLOADS.items():
        (folder / f"{name}.toml").write_text(text)

    def write(text: str = SCENARIO) -> Path:
        path = tmp_path / "two.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def scenario_text() -> str:
    return SCENARIO


@pytest.fixture
def two(write_scenario: Callable[..., Path]) -> Scenario:
    return scenario.load(write_scenario())


@dataclass
class Ran:
    """What a command line did."""

    code: int
    out: str
    err: str


@pytest.fixture
def cohortlab(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: FakePlace, tmp_path: Path
) -> Callable[..., Ran]:
    """Return a function that runs ``cohortlab ARGS`` in an empty folder, with ``--on lab`` being the fake place."""
    real = commands.place_named

    def place_named(name: str, *, probe: bool = True) -> object:
        return place.open if name == "lab" else real(name, probe=probe)

    monkeypatch.setattr(commands, "place_named", place_named)
    empty = tmp_path / "cwd"
    empty.mkdir()
    monkeypatch.chdir(empty)

    def run(*args: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["cohortlab", *map(str, args)])
        code = cli.main()
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run
