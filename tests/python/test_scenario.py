# SPDX-License-Identifier: GPL-2.0-only
"""Every wrong scenario is one line that names file, field, what was wrong and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.python.two_vms import two_vms

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
    "lists of programs that do not go together": (
        'load = "burn"',
        'programs = ["spin", "serve", "chat"]',
        'vm[0].programs: ["spin", "serve"] is not allowed: must be one program, or as many as vm[1] has: 3',
    ),
    "no VM with programs": (
        'programs = ["spin", "serve"]',
        'load = "burn"',
        "vm: no VM has programs: must be one or more VMs with programs, the others with load",
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
    "no VM at all": (
        'load = "burn"',
        'load = "burn"\ncount = 0',
        "vm[1].count: 0 is not allowed: must be an integer from 1 to 256",
    ),
    "a name that is too long with its number": (
        'name = "hog"',
        'count = 10\nname = "a-name-of-exactly-thirty-letter"',
        'vm[1].name: "a-name-of-exactly-thirty-letter" is not allowed: must be at most 28 letters with count = 10',
    ),
    "a name that a count makes": (
        'name = "hog"',
        'count = 2\nname = "a"\nvcpus = 1\nmemory_mb = 256\nload = "burn"\n[[vm]]\nname = "a-2"',
        'vm[1].count: 2 is not allowed: must be another, or the VM "a-2" called otherwise',
    ),
    "a cap of nothing": (
        'load = "burn"',
        'load = "burn"\ncap_pcpus = 0',
        "vm[1].cap_pcpus: 0 is not allowed: must be a number from 0.01 to 1024 (cgroup cpu.max)",
    ),
    "a cap as text": (
        'load = "burn"',
        'load = "burn"\ncap_pcpus = "0.5"',
        'vm[1].cap_pcpus: "0.5" is not allowed: must be a number from 0.01 to 1024 (cgroup cpu.max)',
    ),
    "seconds as text": (
        'load = "burn"',
        'load = "burn"\nrun_s = "2"\nsleep_s = 1',
        'vm[1].run_s: "2" is not allowed: must be a number of seconds from 0.001 to 3600',
    ),
    "true as seconds": (
        'load = "burn"',
        'load = "burn"\nstart_s = true',
        "vm[1].start_s: true is not allowed: must be a number of seconds from 0 to 3600",
    ),
    "no number of seconds": (
        'load = "burn"',
        'load = "burn"\nstart_s = nan',
        "vm[1].start_s: nan is not allowed: must be a number of seconds from 0 to 3600",
    ),
    "both kinds of affinity": (
        'load = "burn"',
        'load = "burn"\naffinity = [0]\nvcpu_affinity = [0, 1]',
        "vm[1].affinity: [0] is not allowed: must be left out in a VM with vcpu_affinity",
    ),
    "vCPUs without an affinity": (
        'load = "burn"',
        'load = "burn"\nvcpu_affinity = [0]',
        "vm[1].vcpu_affinity: [0] is not allowed: must be as long as the VM has vCPUs: 2",
    ),
    "a vCPU on no pCPU": (
        'load = "burn"',
        'load = "burn"\nvcpu_affinity = [0, []]',
        "vm[1].vcpu_affinity[1]: [] is not allowed: must be at least one pCPU",
    ),
    "a vCPU on a pCPU that does not exist": (
        'load = "burn"',
        'load = "burn"\nvcpu_affinity = [0, [1, 2]]',
        "vm[1].vcpu_affinity[1][1]: 2 is not allowed: must be a pCPU from 0 to 1 (host.pcpus = 2)",
    ),
    "a vCPU on another kind of pCPU": (
        'load = "burn"',
        'load = "burn"\nvcpu_affinity = [0, "1"]',
        'vm[1].vcpu_affinity[1]: "1" is not allowed: must be a list that has a pCPU number, or a list of them, for each vCPU',  # noqa: E501
    ),
    "a rhythm without sleep": (
        'load = "burn"',
        'load = "burn"\nrun_s = 1',
        "vm[1].sleep_s: is missing: must be given with run_s",
    ),
    "a program that sleeps": (
        '"serve"]',
        '"serve"]\nrun_s = 1\nsleep_s = 0.5',
        "vm[0].run_s: 1.0 is not allowed: must be left out in a VM without load",
    ),
    "an arrival in the past": (
        'load = "burn"',
        'load = "burn"\nstart_s = -1',
        "vm[1].start_s: -1 is not allowed: must be a number of seconds from 0 to 3600",
    ),
    "policies that are no list": (
        "[host]",
        '[defaults]\npolicies = "eevdf"\n[host]',
        'defaults.policies: "eevdf" is not allowed: must be a list of policies, as --policies has them',
    ),
    "another default": (
        "[host]",
        "[defaults]\nrounds = 3\n[host]",
        "defaults.rounds: is not a known field: known are policies, policy_args, hardware, kernel",
    ),
    "guest is no table": (
        "[host]",
        "guest = 3\n[host]",
        "guest: 3 is not allowed: must be a table with tlb, ple, ple_window_us and kernel",
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


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("x" * 300, f"{'x' * 300}.toml"):
        with pytest.raises(BadInput, match=r"xxx(\.toml)?: cannot be read: File name too long$"):
            scenario.load(Path(name))


def test_a_number_that_is_too_long_to_be_read(write_scenario: Write) -> None:
    with pytest.raises(BadInput, match=r"two\.toml: has an integer of too many digits: must be of 64 bits$"):
        scenario.load(write_scenario(f"x = {'9' * 4400}\n"))


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


def test_an_integer_is_a_number(write_scenario: Write, scenario_text: str) -> None:
    more = 'load = "burn"\ncap_pcpus = 1\nstart_s = 2\nrun_s = 3\nsleep_s = 4'
    hog = scenario.load(write_scenario(scenario_text.replace('load = "burn"', more))).vms[1]
    assert (hog.cap_pcpus, hog.start_s, hog.run_s, hog.sleep_s) == (1, 2, 3, 4)


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
    # What overcommit is about: together the VMs want more than there is. One scenario shows what happens without.
    shares = sum(vm.vcpus for vm in loaded.vms) > loaded.host.pcpus
    assert shares == (path.stem != "nothing-shared")


def test_the_pause_filter_can_be_chosen_anew(write_scenario: Write) -> None:
    chosen = scenario.load(write_scenario())
    assert (chosen.guest.ple, chosen.guest.ple_window_us) == (True, None)
    assert chosen.with_ple(25).guest.ple_window_us == 25
    off = chosen.with_ple(25).with_ple(None).guest
    assert (off.ple, off.ple_window_us) == (False, None)


@pytest.mark.parametrize(("written", "meant"), [("6.18", "6.18"), ("./vmlinuz", "{folder}/vmlinuz"), (None, None)])
def test_the_guests_kernel_is_a_release_or_a_file_beside_the_scenario(
    write_scenario: Write, scenario_text: str, written: str | None, meant: str | None
) -> None:
    table = f'[guest]\nkernel = "{written}"\n' if written else ""
    path = write_scenario(scenario_text.replace("[[vm]]", f"{table}[[vm]]", 1))
    chosen = scenario.load(path)
    assert chosen.guest.kernel == (meant and meant.format(folder=path.parent))
    assert chosen.with_guest_kernel("6.12").guest.kernel == "6.12"


SEVERAL = """
name = "several"
[host]
pcpus = 2
[[vm]]
name = "a"
vcpus = 2
memory_mb = 256
programs = ["spin", "chat"]
[[vm]]
name = "b"
count = 2
vcpus = 1
memory_mb = 256
programs = ["serve"]
vcpu_affinity = [1]
[[vm]]
name = "hog"
vcpus = 2
memory_mb = 256
load = "spin"
"""


def test_several_vms_with_programs_run_them_in_turns(write_scenario: Write) -> None:
    several = scenario.load(write_scenario(SEVERAL))
    assert [vm.name for vm in several.vms] == ["a", "b-1", "b-2", "hog"]
    assert several.rows == (0, 1, 1, 2)
    others = (("b-1", "serve"), ("b-2", "serve"))
    assert several.turns == ((("a", "spin"), *others), (("a", "chat"), *others))
    assert several.labels == (
        *("a:spin", "b-1:serve@spin", "b-2:serve@spin"),
        *("a:chat", "b-1:serve@chat", "b-2:serve@chat"),
    )
    assert several.turn_of("a:chat") == several.turns[1]
    assert several.turn_of("chat") is None
    assert several.turn_of("b-1:serve@chat") == several.turns[1]
    assert several.only(["a:chat"]).turns == several.turns[1:]
    # Where there is one turn, who runs beside whom goes without saying.
    assert several.only(["a:chat"]).labels == ("a:chat", "b-1:serve", "b-2:serve")
    others = several.with_programs(("chat",))
    assert others.labels == ("a:chat", "b-1:chat", "b-2:chat")
    assert several.only(others.labels).turns == others.turns


def test_programs_that_are_models_alone(write_scenario: Write, tmp_path: Path) -> None:
    own = tmp_path / "workloads" / "models"
    own.mkdir()
    thread = '[[thread]]\nname = "t"\n'
    (own / "mine.toml").write_text(f'name = "mine"\n[metric.rate]\ndone = "x"\nunit = "x/s"\n{thread}steps = []\n')
    (own / "noise.toml").write_text(f'name = "noise"\n{thread}times = "forever"\nsteps = []\n')
    text = SEVERAL.replace('"serve"', '"mine"').replace('load = "spin"', 'load = "noise"').replace('"chat"', '"dedup"')
    loaded = scenario.load(write_scenario(text))
    mine, noise, dedup = (loaded.workloads[name] for name in ("mine", "noise", "dedup"))
    assert (mine.command, mine.unit, mine.is_rate, mine.background) == (None, "x/s", True, False)
    assert (noise.background, noise.metric) == (True, None)
    assert (dedup.unit, dedup.is_rate, dedup.title) == ("s", False, "PARSEC dedup: a pipeline, TLB flushes")
    assert loaded.models == {
        "mine": own / "mine.toml",
        "noise": own / "noise.toml",
        "dedup": REPOSITORY / "workloads" / "models" / "dedup.toml",
    }


def test_the_unit_of_a_model_is_a_text(write_scenario: Write, tmp_path: Path) -> None:
    own = tmp_path / "workloads" / "models"
    own.mkdir()
    (own / "mine.toml").write_text('name = "mine"\n[metric.rate]\ndone = "x"\nunit = 5\n[[thread]]\nname = "t"\n')
    with pytest.raises(BadInput) as caught:
        scenario.load(write_scenario(SEVERAL.replace('"serve"', '"mine"')))
    assert str(caught.value) == f"{own / 'mine.toml'}: metric.rate.unit: 5 is not allowed: must be a text"


def test_a_workload_with_neither_command_nor_model(write_scenario: Write, tmp_path: Path) -> None:
    path = write_scenario()
    file = tmp_path / "workloads" / "spin.toml"
    file.write_text(file.read_text().replace('command = "spin 1"\n', ""))
    with pytest.raises(BadInput) as caught:
        scenario.load(path)
    allowed = "must be a command line for the guest's sh, unless models/spin.toml exists"
    assert str(caught.value) == f"{file}: command: is missing: {allowed}"


@pytest.mark.parametrize(
    ("text", "unit", "endless"),
    [
        ('{"tasks": {"a": {"loop": 3, "run": 5}}} /* a comment */', "s", False),
        ('{"global": {"duration": 2}, "tasks": {"a": {"run": 5}}}', "loops/s", False),
        ('{"global": {"duration": -1}, "tasks": {"a": {"run": 5}}}', "s", True),
    ],
)
def test_rt_app_files_are_programs(
    write_scenario: Write, scenario_text: str, tmp_path: Path, text: str, unit: str, endless: bool
) -> None:
    (tmp_path / "x.json").write_text(text)
    if endless:
        loaded = scenario.load(write_scenario(scenario_text.replace('load = "burn"', 'load = "x.json"')))
    else:
        loaded = scenario.load(write_scenario(scenario_text.replace('"serve"', '"x.json"')))
    workload = loaded.workloads["x.json"]
    assert (workload.unit, workload.background, workload.name) == (unit, endless, "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "x.json: is not JSON: Expecting property name"),
        ("{}", "x.json: tasks: is missing: must be an object of tasks"),
        (None, "x.json: cannot be read: No such file or directory"),
    ],
)
def test_rt_app_files_that_are_none(
    write_scenario: Write, scenario_text: str, tmp_path: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInput) as caught:
        scenario.load(write_scenario(scenario_text.replace('"serve"', '"x.json"')))
    assert said in str(caught.value)


def test_a_scenario_from_a_pipe_is_read_once() -> None:
    text = two_vms("tlb-flush")
    reads, writes = os.pipe()
    os.write(writes, text.encode())
    os.close(writes)
    try:
        assert scenario.load(Path(f"/dev/fd/{reads}")).text == text
    finally:
        os.close(reads)
