# SPDX-License-Identifier: GPL-2.0-only
"""Every wrong scenario is one line that names file, field, what was wrong and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cohortlab import scenario, workloads
from cohortlab.errors import BadInput

Write = Callable[..., Path]
REPOSITORY = Path(__file__).resolve().parents[2]

WRONG = {
    "a window of nothing": (
        "[host]",
        "[guest]\nple_window_us = 0\n[host]",
        "guest.ple_window_us: 0 is not allowed: must be an integer from 1 to 10000",
    ),
    "negative vcpus": (
        'name = "hog"\nvcpus = 2',
        'name = "hog"\nvcpus = -2',
        "vm[1].vcpus: -2 is not allowed: must be an integer from 1 to 256",
    ),
    "a number as text": (
        'name = "hog"\nvcpus = 2',
        'name = "hog"\nvcpus = "2"',
        'vm[1].vcpus: "2" is not allowed: must be an integer from 1 to 256',
    ),
    "true as a number": (
        "pcpus = 2",
        "pcpus = true",
        "host.pcpus: true is not allowed: must be an integer from 1 to 1024",
    ),
    "missing field": (
        'name = "hog"\nvcpus = 2',
        'name = "hog"',
        "vm[1].vcpus: is missing: must be an integer from 1 to 256",
    ),
    "missing table": ("[host]\npcpus = 2", "", "host: is missing: must be a table with pcpus"),
    "misspelt field": (
        'name = "hog"\nvcpus = 2',
        'name = "hog"\nvcpu = 2',
        'vm[1].vcpu: is not a known field: did you mean "vcpus"?',
    ),
    "unknown field": ("pcpus = 2", "pcpus = 2\ncolour = 3", "host.colour: is not a known field: known are pcpus"),
    "weight 0": (
        'load = "burn"',
        'load = "burn"\nweight = 0',
        "vm[1].weight: 0 is not allowed: must be an integer from 1 to 10000 (cgroup cpu.weight)",
    ),
    "weight 10001": (
        'load = "burn"',
        'load = "burn"\nweight = 10001',
        "vm[1].weight: 10001 is not allowed: must be an integer from 1 to 10000 (cgroup cpu.weight)",
    ),
    "more vcpus than memory allows": (
        'vcpus = 2\nmemory_mb = 256\nload = "burn"',
        'vcpus = 5\nmemory_mb = 256\nload = "burn"',
        "vm[1].vcpus: 5 is not allowed: must be 4 or less with memory_mb = 256, or memory_mb = 288 or more"
        " (a guest needs 128 MB + 32 MB per vCPU)",
    ),
    "memory for no vcpu at all": (
        'memory_mb = 256\nload = "burn"',
        'memory_mb = 64\nload = "burn"',
        "vm[1].vcpus: 2 is not allowed: must be given memory_mb = 192 or more (a guest needs 128 MB + 32 MB per vCPU)",
    ),
    "duplicate names": (
        'name = "hog"',
        'name = "work"',
        'vm[1].name: "work" is not allowed: must be unique; vm[0] has this name',
    ),
    "a name that is no file name": (
        'name = "hog"',
        'name = "../hog"',
        "vm[1].name: \"../hog\" is not allowed: must be 1 to 31 lower-case letters, digits and '-', the first no '-'",
    ),
    "affinity to a pCPU that does not exist": (
        'load = "burn"',
        'load = "burn"\naffinity = [0, 2]',
        "vm[1].affinity[1]: 2 is not allowed: must be a pCPU from 0 to 1 (host.pcpus = 2)",
    ),
    "affinity twice": (
        'load = "burn"',
        'load = "burn"\naffinity = [1, 1]',
        "vm[1].affinity[1]: 1 is not allowed: must be a pCPU that is not in the list already",
    ),
    "affinity to nothing": (
        'load = "burn"',
        'load = "burn"\naffinity = []',
        "vm[1].affinity: [] is not allowed: must be at least one pCPU, or left out for all",
    ),
    "affinity that is no list": (
        'load = "burn"',
        'load = "burn"\naffinity = "0"',
        'vm[1].affinity: "0" is not allowed: must be a list of pCPU numbers',
    ),
    "two VMs with programs": (
        'load = "burn"',
        'programs = ["spin"]',
        'vm[1].programs: ["spin"] is not allowed: must be left out: only one VM may have programs, and vm[0] has them',
    ),
    "no VM with programs": (
        'programs = ["spin", "serve"]',
        'load = "burn"',
        "vm: no VM has programs: must be one VM with programs, the others with load",
    ),
    "neither programs nor load": (
        'load = "burn"',
        "",
        "vm[1].load: is missing: must be given in every VM that has no programs",
    ),
    "programs and load": (
        'programs = ["spin", "serve"]',
        'programs = ["spin"]\nload = "burn"',
        'vm[0].load: "burn" is not allowed: must be left out in a VM with programs',
    ),
    "a program twice": (
        '"serve"]',
        '"spin"]',
        'vm[0].programs[1]: "spin" is not allowed: must be a workload that is not in the list already',
    ),
    "unknown TLB mode": (
        "[[vm]]",
        '[guest]\ntlb = "magic"\n[[vm]]',
        'guest.tlb: "magic" is not allowed: must be "ipi", "kvm-pv" or "hypercall"',
    ),
    "endless program": (
        '"serve"]',
        '"burn"]',
        'vm[0].programs[1]: "burn" is not allowed: must be a workload that ends; this one is endless and only for load',
    ),
    "load that ends": (
        'load = "burn"',
        'load = "spin"',
        'vm[1].load: "spin" is not allowed: must be an endless workload: one whose file says background = true',
    ),
    "guest is no table": (
        "[host]",
        "guest = 3\n[host]",
        "guest: 3 is not allowed: must be a table with tlb, ple and ple_window_us",
    ),
    "vm is no list": (
        SystemExit,
        'name = "x"\nvm = 3\n[host]\npcpus = 1\n',
        "vm: 3 is not allowed: must be one or more [[vm]] tables",
    ),
    "no vm": (SystemExit, 'name = "x"\n[host]\npcpus = 1\n', "vm: is missing: must be one or more [[vm]] tables"),
}


@pytest.mark.parametrize(("old", "new", "expected"), WRONG.values(), ids=WRONG.keys())
def test_wrong_scenario(write_scenario: Write, scenario_text: str, old: object, new: str, expected: str) -> None:
    text = new if old is SystemExit else scenario_text.replace(str(old), new, 1)
    assert text != scenario_text
    path = write_scenario(text)
    with pytest.raises(BadInput) as caught:
        scenario.load(path)
    assert str(caught.value) == f"{path}: {expected}"


def test_unknown_workload_lists_the_known_ones(write_scenario: Write, scenario_text: str) -> None:
    path = write_scenario(scenario_text.replace('"serve"', '"swerve"'))
    with pytest.raises(BadInput) as caught:
        scenario.load(path)
    line = str(caught.value)
    assert line.startswith(f'{path}: vm[0].programs[1]: "swerve" is not allowed: must be one of ')
    assert {"burn", "chat", "serve", "spin"} <= set(line.rpartition("one of ")[2].split(", "))


def test_an_empty_name_is_no_workload_either(write_scenario: Write, scenario_text: str) -> None:
    path = write_scenario(scenario_text.replace('load = "burn"', 'load = ""'))
    with pytest.raises(BadInput) as caught:
        scenario.load(path)
    assert str(caught.value).startswith(f'{path}: vm[1].load: "" is not allowed: must be one of ')


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.toml: cannot be read: No such file or directory"):
        scenario.load(tmp_path / "nowhere.toml")


def test_file_that_is_not_toml(write_scenario: Write) -> None:
    with pytest.raises(BadInput, match=r"is not valid TOML: .*line 2") as caught:
        scenario.load(write_scenario('name = "x"\nhost = = 3\n'))
    assert "\n" not in str(caught.value)


def test_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="must be text in UTF-8"):
        scenario.load(tmp_path / "x.toml")


def test_defaults_and_what_the_vm_overrides(write_scenario: Write, scenario_text: str) -> None:
    text = scenario_text.replace("[[vm]]", '[guest]\ntlb = "kvm-pv"\nple = false\n[[vm]]', 1)
    loaded = scenario.load(write_scenario(text.replace('load = "burn"', 'load = "burn"\ntlb = "hypercall"')))
    work, hog = loaded.vms
    assert (work.tlb, hog.tlb) == ("kvm-pv", "hypercall")
    assert (work.weight, work.affinity, loaded.guest.ple) == (100, None, False)
    assert loaded.program_vm is work
    assert loaded.neighbours == (hog,)
    assert sorted(loaded.workloads) == ["burn", "serve", "spin"]
    assert [vm.tlb for vm in loaded.with_tlb("ipi").vms] == ["ipi", "ipi"]


def test_fewer_programs_need_fewer_workloads(write_scenario: Write) -> None:
    fewer = scenario.load(write_scenario()).with_programs(("serve",))
    assert fewer.program_vm.programs == ("serve",)
    assert sorted(fewer.workloads) == ["burn", "serve"]


def test_a_workload_next_to_the_scenario_goes_first(
    write_scenario: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_scenario()
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    own = path.parent / "workloads" / "spin.toml"
    (shipped / "spin.toml").write_text(own.read_text().replace("spin 1", "shipped"))
    (path.parent / "workloads" / "burn.toml").rename(shipped / "burn.toml")
    monkeypatch.setattr(workloads, "SHIPPED", shipped)
    loaded = scenario.load(path)
    assert loaded.workloads["spin"].command == "spin 1"
    assert loaded.workloads["burn"].background


@pytest.mark.parametrize("path", sorted((REPOSITORY / "scenarios").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_scenario(path: Path) -> None:
    loaded = scenario.load(path)
    assert loaded.name == path.stem
    # What the issue of overcommit is about: together the VMs want more than there is.
    assert sum(vm.vcpus for vm in loaded.vms) > loaded.host.pcpus


def test_the_pause_filter_can_be_chosen_anew(write_scenario: Write) -> None:
    chosen = scenario.load(write_scenario())
    assert (chosen.guest.ple, chosen.guest.ple_window_us) == (True, None)
    assert chosen.with_ple(25).guest.ple_window_us == 25
    off = chosen.with_ple(25).with_ple(None).guest
    assert (off.ple, off.ple_window_us) == (False, None)
