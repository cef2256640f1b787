# SPDX-License-Identifier: GPL-2.0-only
"""The doctor, on machines made of files."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohortlab import doctor, kvm
from cohortlab.doctor import Findings, examine
from cohortlab.lab import kinds, qemu, qemu_build

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder of a machine that can do everything but KVM, run by root."""
    root = tmp_path / "root"
    for path, content in {
        "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable:   8388608 kB\n",
        "sys/kernel/sched_ext/state": "disabled\n",
        "sys/kernel/btf/vmlinux": "",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    (root / "dev").mkdir()
    built = tmp_path / "bin"
    built.mkdir()
    for name in ("cohort", "cohort-lab-agent"):
        (built / name).touch()
    monkeypatch.setenv("COHORT_BIN", str(built))
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/bin/{name}")
    clang = type("Done", (), {"stdout": "clang version 19.1.7"})
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: clang)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 50 << 30}))
    return root


def findings(root: Path, release: str = "7.3.4-test") -> tuple[dict[str, Any], dict[str, Any]]:
    said = examine(root, release).for_machines()
    return {f["name"]: f for f in said["findings"]}, {c["what"]: c for c in said["conclusions"]}


def test_a_machine_that_can_do_everything(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "probe", lambda device: kvm.Kvm(True, True, True, ""))
    found, concluded = findings(machine)
    assert [f["name"] for f in found.values() if not f["ok"]] == []
    assert concluded["lab"]["how"] == "yes, under KVM"
    assert concluded["cohort run"] == {"what": "cohort run", "ok": True, "how": "yes"}


def test_no_kvm_means_emulation(machine: Path) -> None:
    found, concluded = findings(machine)
    assert found["/dev/kvm"]["ok"] is False
    assert found["/dev/kvm"]["found"].endswith("dev/kvm does not exist")
    assert concluded["lab"]["ok"] is True
    assert concluded["lab"]["how"].startswith("yes, under emulation (slower), because ")
    assert concluded["cohort run"]["ok"] is True


@pytest.mark.parametrize(
    ("wanted", "built", "costs"),
    [
        (None, True, []),
        (None, False, [kinds.COSTS["cured"], "stock", "die within minutes"]),
        ("patched", True, []),
        ("cured", True, [kinds.COSTS["cured"]]),
        ("stock", True, [kinds.COSTS["stock"]]),
        ("/some/qemu", True, []),
    ],
)
def test_the_emulator_is_named_with_what_it_costs(
    machine: Path, monkeypatch: pytest.MonkeyPatch, wanted: str | None, built: bool, costs: list[str]
) -> None:
    monkeypatch.delenv(qemu.VARIABLE, raising=False)
    if wanted:
        monkeypatch.setenv(qemu.VARIABLE, wanted)
    monkeypatch.setattr(qemu_build, "built", lambda: machine if built else None)
    found = findings(machine)[0]["emulator"]
    assert found["ok"] == built
    assert [text for text in costs if text not in found["found"]] == []
    assert costs or found["found"] == (f"COHORT_EMULATOR={wanted}" if wanted else "QEMU, patched")
    # The processor is real, and so is what an exit costs.
    monkeypatch.setattr(kvm, "probe", lambda device: kvm.Kvm(True, True, True, ""))
    assert "costs" not in findings(machine)[0]["emulator"]["found"]


@pytest.mark.parametrize(("limit", "may"), [(0, False), (1, True), (resource.RLIM_INFINITY, True)])
def test_timers_are_on_time_for_who_may_be_a_real_time_thread(
    machine: Path, monkeypatch: pytest.MonkeyPatch, limit: int, may: bool
) -> None:
    assert findings(machine)[0]["lab's timers"]["ok"]
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("resource.getrlimit", lambda which: (limit, limit))
    found, concluded = findings(machine)
    assert (found["lab's timers"]["ok"], concluded["lab"]["ok"]) == (may, True)


def test_kvm_without_nesting_means_emulation(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "probe", lambda device: kvm.Kvm(True, True, False, ""))
    found, concluded = findings(machine)
    assert (found["/dev/kvm"]["ok"], found["nested virtualization"]["ok"]) == (True, False)
    assert concluded["lab"]["how"] == ("yes, under emulation (slower), because KVM offers no nested virtualization")


def test_a_device_that_is_not_kvm(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    device.write_text("")
    found = kvm.probe(device)
    assert (found.present, found.usable, found.nested) == (True, False, False)
    assert found.reason == f"{device} does not work: Inappropriate ioctl for device"


def test_kernel_without_sched_ext_and_too_old(machine: Path) -> None:
    (machine / "sys/kernel/sched_ext/state").unlink()
    found, concluded = findings(machine, "6.1.0-43-amd64")
    assert found["kernel"]["ok"] is False
    assert found["sched_ext"]["remedy"].startswith("boot a kernel of 6.18 or newer with CONFIG_SCHED_CLASS_EXT=y")
    assert concluded["cohort run"]["how"] == (
        "no, because the kernel 6.1.0-43-amd64 is older than 6.18 and the running kernel has no sched_ext"
    )


def test_no_btf(machine: Path) -> None:
    (machine / "sys/kernel/btf/vmlinux").unlink()
    found, concluded = findings(machine)
    assert found["BTF"]["ok"] is False
    assert concluded["cohort run"]["how"] == "no, because the running kernel has no BTF"


def test_real_time_kernel_and_isolated_cpus(machine: Path) -> None:
    (machine / "sys/kernel/realtime").write_text("1\n")
    (machine / "sys/devices/system/cpu").mkdir(parents=True, exist_ok=True)
    (machine / "sys/devices/system/cpu/isolated").write_text("2-3\n")
    _, concluded = findings(machine)
    assert concluded["cohort run"]["how"] == (
        "no, because the running kernel is built with PREEMPT_RT"
        " and CPUs 2-3 are isolated by isolcpus= on the kernel's command line"
    )


def test_another_scheduler_is_loaded(machine: Path) -> None:
    (machine / "sys/kernel/sched_ext/state").write_text("enabled\n")
    (machine / "sys/kernel/sched_ext/root").mkdir()
    (machine / "sys/kernel/sched_ext/root/ops").write_text("bpfland\n")
    _, concluded = findings(machine)
    assert concluded["cohort run"]["how"] == "no, because another scheduler (bpfland) is loaded"


def test_user_without_sudo(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    _, concluded = findings(machine)
    assert concluded["cohort run"]["how"] == "yes, with sudo"
    monkeypatch.setattr("shutil.which", lambda name, **_: None)
    found, concluded = findings(machine)
    assert found["root or sudo"]["ok"] is False
    assert concluded["cohort run"]["how"] == "no, because you are not root and there is no sudo"
    # Nor is there anything to build the lab's image with.
    assert concluded["lab"]["how"] == "no, because apt-get, dpkg-deb, mke2fs cannot be found"


def test_nothing_is_built_yet(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "cohort").unlink()
    found, concluded = findings(machine)
    assert (found["built programs"]["ok"], found["built programs"]["found"]) == (False, "no cohort")
    assert concluded["lab"]["how"] == "no, because its programs are not built yet (make build)"


def test_too_little_memory(machine: Path) -> None:
    (machine / "proc/meminfo").write_text("MemAvailable: 1048576 kB\n")
    found, concluded = findings(machine)
    assert (found["memory"]["ok"], found["memory"]["found"]) == (False, "1024 MB available")
    assert concluded["lab"]["how"] == "no, because only 1024 MB of memory are available"


@pytest.mark.parametrize(
    ("said", "ok", "found"),
    [
        ("Debian clang version 19.1.7 (3)\n", True, "version 19.1.7"),
        ("Ubuntu clang version 14.0.0\n", False, "is too old"),
    ],
)
def test_clang(monkeypatch: pytest.MonkeyPatch, said: str, ok: bool, found: str) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/bin/{name}" if name == "clang" else None)
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: type("Done", (), {"stdout": said}))
    finding = doctor._clang()
    assert finding.ok is ok
    assert finding.found.endswith(found)


def test_a_clang_that_is_no_program_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "clang"
    file.write_text("no program\n")
    file.chmod(0o755)
    monkeypatch.setenv("CLANG", str(file))
    monkeypatch.setattr("shutil.which", lambda name, **_: name if name == str(file) else None)
    finding = doctor._clang()
    assert (finding.ok, finding.found) == (False, f"{file} does not start: Exec format error")


def test_a_cache_that_is_not_there_is_not_made(machine: Path, tmp_path: Path) -> None:
    found, _ = findings(machine)
    assert "empty, the first run fills it" in found["cache"]["found"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("name", "why"), [("a-file", "Not a directory"), ("x" * 300, "File name too long")])
def test_a_cache_that_cannot_be_used_is_missing(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / name))
    found, concluded = findings(machine)
    said = f"{tmp_path / name}: cannot be read: {why}"
    assert (found["cache"]["ok"], found["cache"]["found"]) == (False, said)
    assert (found["disk space"]["ok"], found["disk space"]["found"]) == (False, "not known without a cache")
    assert concluded["lab"]["how"] == "no, because its cache folder cannot be used"


def test_a_user_without_a_home(machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert findings(machine)[0]["cache"]["ok"], "COHORT_CACHE is set"
    monkeypatch.delenv("COHORT_CACHE")
    found, concluded = findings(machine)
    assert found["cache"]["found"].startswith("there is no home folder for the cache: set HOME, or COHORT_CACHE")
    assert concluded["lab"]["how"] == "no, because its cache folder cannot be used"


def test_output(cohortlab: Callable[..., Any], machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Findings = examine(machine, "7.3.4-test")
    monkeypatch.setattr(doctor, "examine", lambda: made)
    ran = cohortlab("doctor")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) == len(made.findings) + 1 + len(made.conclusions)  # one line each
    for finding, line in zip(made.findings, lines, strict=False):
        assert line.split()[0] == ("ok" if finding.ok else "missing")
        assert finding.name in line
        assert finding.ok or line.endswith(finding.remedy)
    ran = cohortlab("doctor", "--json")
    assert json.loads(ran.out) == made.for_machines()


def test_this_machine_can_be_examined() -> None:
    said = examine()
    assert {c.what for c in said.conclusions} == {"lab", "simulator", "cohort run"}


def test_the_host_program_agrees() -> None:
    """What is written twice, in two languages, is the same."""
    checks = (REPOSITORY / "host/src/checks.rs").read_text()
    oldest = re.search(r'OLDEST_TESTED: &str = "([\d.]+)"', checks)
    assert oldest is not None
    assert oldest[1] == ".".join(map(str, doctor.OLDEST_KERNEL))


def test_one_cpu_is_no_lab(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5})
    found, concluded = findings(machine)
    assert (found["CPUs"]["ok"], found["CPUs"]["found"]) == (False, "1")
    assert concluded["lab"] == {"what": "lab", "ok": False, "how": "no, because there is only one CPU"}


def test_root_without_the_right_to_set_priorities(machine: Path) -> None:
    status = machine / "proc/self/status"
    status.parent.mkdir()
    for capabilities, may in (("000001ffffffffff", True), ("00000000a80425fb", False)):
        status.write_text(f"CapPrm:\t000001ffffffffff\nCapEff:\t{capabilities}\n")
        assert findings(machine)[0]["lab's timers"]["ok"] is may


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("doctor", 0, "simulator: no, because the simulator is not built for this Python"),
        ("--version", 0, "cohortlab "),
        ("--help", 0, "Not here: the simulator"),
        ("compare --on sim --what smp-2x2", 1, "run `make build`"),
        ("compare smp-2x2", 1, "run `make build`"),
    ],
)
def test_without_the_simulators_module_the_rest_works(words: str, code: int, said: str) -> None:
    program = f"import sys; sys.modules['cohort_sim'] = None; sys.argv = 'cohortlab {words}'.split()\n"
    program += "from cohortlab.cli import main; sys.exit(main())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, said in ran.stdout + ran.stderr) == (code, True), ran
    assert "internal error" not in ran.stderr
