# SPDX-License-Identifier: GPL-2.0-only
"""What a hypervisor may assume of a processor, asked of each emulator by the bare programs of lab/emulator/tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cohortlab.lab import qemu, qemu_build
from cohortlab.lab.command import MACHINE, TCG_CPU
from cohortlab.lab.image import image
from cohortlab.places import PlaceError

pytestmark = pytest.mark.lab

SOURCES = Path(__file__).parents[2] / "lab/emulator/tests"
RUNTIME = ("start.S", "run.c", "svm.c")
PROGRAMS = sorted(path.stem for path in SOURCES.glob("*.c") if path.name not in RUNTIME)
CFLAGS = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-mgeneral-regs-only", "-mno-red-zone"),
    *("-fno-pie", "-static", "-nostdlib", "-fno-stack-protector", "-fcf-protection=none"),
    *(
        "-fno-asynchronous-unwind-tables",
        "-Wl,-e,start32,-Ttext-segment=0x100000,--build-id=none,-z,max-page-size=4096",
    ),
)
# They end by themselves within some seconds, on a machine that does nothing else.
LIMIT_S = 120
# On a machine with five times as much to do as it can, three runs of eight lost it; the first that does is enough.
RACES = 20

# What the emulators are known to get wrong, every time. Who mends one removes it here.
DEBIANS = {
    "faults": {
        "a host's split lock that faults",
        "a guest's split lock that faults",
        "reserved bits of a guest's CR3",
        "reserved bits of a guest's CR4",
        "the program",  # ends with the host's
    },
    "inject": {
        "exit_int_info is 0 after it",
        "exit_int_info is 0 after an exception",
        "exit_int_info is 0 after what was interrupted",
        "a page fault below the guest's INT3",
        "delivered once, with a split lock on the other CPU",
    },
    "virq": {
        "V_TPR holds back what is not above it",
        "a lower CR8 lets it pass",
        "a page fault below a virtual interrupt",
    },
}
FAULTS: dict[str, dict[str, set[str]]] = {
    "patched": {
        "next_rip": {
            # LMSW asks for CR0's selective intercept only if it changes more than TS and MP.
            "lmsw_selective_unchanged",
            # With a prefix they have two bytes, and are taken for INT 3 and INT 4.
            "int3_prefixed",
            "into_prefixed",
        },
    },
    "cured": DEBIANS,
    "stock": DEBIANS,
}
# Debian's lose these races, but not every time; its own binary loses that of race.c soon.
RACING: dict[str, set[str]] = {
    "patched": set(),
    "cured": {"ipi", "patching"},
    "stock": {"ipi", "patching", "race"},
}


@dataclass(frozen=True)
class Report:
    """What a program said."""

    text: str

    def names(self, word: str) -> set[str]:
        return set(re.findall(rf"^{word} ([^:\n]+)", self.text, re.M))

    @property
    def ended(self) -> bool:
        return self.text.endswith("END\n")


Run = Callable[[str, str], Report]


def emulator(kind: str) -> qemu.Qemu:
    """Return the emulator of a kind; a patched one may also be somebody's own, named by its path."""
    with pytest.MonkeyPatch.context() as patch:
        if not (kind == "patched" and os.sep in os.environ.get(qemu.VARIABLE, "")):
            patch.setenv(qemu.VARIABLE, kind)
        try:
            return qemu.choose(image(), "tcg")
        except PlaceError as error:
            pytest.skip(str(error))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Compiles a program and runs it: ``run(kind, program)``."""
    folder = tmp_path_factory.mktemp("programs")

    def run_one(kind: str, program: str) -> Report:
        chosen = emulator(kind)
        binary = folder / program
        if not binary.exists():
            compile_program(program, binary)
        argv = [
            *chosen.argv,
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "64M", "-smp", "2"),
            *("-machine", MACHINE, "-accel", "tcg,thread=multi", "-cpu", TCG_CPU),
            *("-kernel", str(binary), "-serial", "stdio"),
        ]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=os.environ | chosen.env,
                timeout=LIMIT_S,
                check=False,
            )
            text = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as late:
            text = (late.stdout or b"").decode(errors="replace") + f"killed after {LIMIT_S} s\n"
        print(f"--- {program} under {chosen.name}\n{text}")
        return Report(text.replace("\r", ""))

    return run_one


def compile_program(program: str, binary: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang-19")
    assert compiler, "neither gcc nor clang-19"
    sources = [str(SOURCES / name) for name in (f"{program}.c", *RUNTIME)]
    subprocess.run([compiler, *CFLAGS, "-o", str(binary), *sources], check=True)


@pytest.mark.parametrize(
    ("kind", "program"),
    [(kind, program) for kind in qemu.KINDS for program in PROGRAMS if program not in RACING[kind]],
)
def test_does_what_a_processor_does_but_for_known_faults(run: Run, kind: str, program: str) -> None:
    report = run(kind, program)
    assert report.ended
    known = FAULTS[kind].get(program, set())
    if kind != "patched" and emulator(kind).version not in qemu_build.recipe().version:
        # Debian's has changed: it may have been mended.
        known &= report.names("FAIL")
    assert report.names("FAIL") == known
    assert report.names("ok") or report.names("skip")
    if kind == "patched":
        assert not report.names("skip"), "it has what the lab counts on"
        if program == "tlb":
            assert "info nothing: data kept, code kept" in report.text, "its TLB is tagged"
            kept = r"^info the guest's CR3 load: data forgotten, code forgotten, global data kept"
            assert re.search(kept, report.text, re.M), "global pages are kept over a CR3 load"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU runs one thread at a time: no race")
def test_debians_own_loses_the_race_that_the_cure_is_for(run: Run) -> None:
    # Nobody can demand that a race be lost: on some machines it never is.
    if not any(run("stock", "race").names("FAIL") for _ in range(RACES)):
        pytest.skip(f"not lost in {RACES} runs")
