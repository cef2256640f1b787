# SPDX-License-Identifier: GPL-2.0-only
"""The policies of a comparison: a scheduler's name, its arguments, and the label it is reported under."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cohortlab.errors import BadInput
from cohortlab.native import native
from cohortlab.places import PlaceError

_SCHEDULER = native()
KERNEL = "eevdf"  # the kernel's own scheduler: nothing is loaded
# The presets of `cohort run --policy`, from the scheduler's own table: a typing error is told before anything boots.
PRESETS = tuple(row[0] for row in _SCHEDULER.policies()["preset"])
KNOWN = (KERNEL, *PRESETS)
ALL = "all"
# What a policy may be given on real kernels and is no part of it.
_TALKATIVE = frozenset({"-v", "-vv", "--verbose"})
# How Linux 7.3 and newer divide a cgroup's weight among CPUs: /sys/kernel/debug/sched/cgroup_mode.
CGROUP_MODES = ("up", "smp", "concur", "max", "tasks")
# Of base_slice_ns, for which the kernel itself has no bounds: those of a task's own slice (sched_setattr).
BASE_SLICE_US = range(100, 100_001)
# Of sched_latency_ns and sched_min_granularity_ns: 0.1 ms to 1 s, as kernel/sysctl.c has them.
CFS_US = range(100, 1_000_001)

_YES_NO = {"yes": True, "no": False}
# What a pause-loop exit may do under the kernel's own scheduler: what KVM does, and two cures (Yasuno, section 5).
KERNEL_BOOSTS = ("candidate", "any-mode", "unfair")
# Of a policy, on real kernels: the `cohort` that runs it, in place of the one that is built here.
BINARY = "--binary"

_KERNEL_FLAGS = ("--cgroup-mode", "--vm-cgroups", "--boost")
# In the order of KernelSettings' fields.
_NUMBERS = {"--base-slice-us": BASE_SLICE_US, "--latency-us": CFS_US, "--min-granularity-us": CFS_US}


@dataclass(frozen=True)
class Policy:
    """One contestant. ``label`` is NAME, or NAME@VARIANT to compare a policy with itself under other arguments."""

    label: str
    name: str
    args: tuple[str, ...] = ()


def parse_policies(listed: str, arguments: Sequence[str]) -> tuple[Policy, ...]:
    """Return the policies of ``--policies`` with the arguments that ``--policy-args LABEL=ARGS`` give them."""
    labels = [label.strip() for label in listed.split(",")] if listed != ALL else list(KNOWN)
    given: dict[str, tuple[str, ...]] = {}
    for text in arguments:
        label, args = _split_arguments(text)
        if label in given:
            raise BadInput(f'--policy-args: "{label}" is given twice: must be once, with all its arguments')
        given[label] = args
    policies = []
    for label in labels:
        name, _, variant = label.partition("@")
        if name == ALL:
            raise BadInput(f'--policies: "{ALL}" is not allowed beside others: must stand alone')
        if name not in KNOWN:
            raise BadInput(f'--policies: unknown policy "{name}": known are {", ".join(KNOWN)}, and "{ALL}"')
        if "@" in label and not re.fullmatch(r"[\w.+-]+", variant):
            raise BadInput(f'--policies: "{label}": what follows @ must be letters, digits and . + - _')
        if labels.count(label) > 1:
            raise BadInput(f'--policies: "{label}" is named twice: write {label}@NAME for a variant of it')
        args = given.pop(label, ())
        if name == KERNEL:
            kernel_settings(args)
        policies.append(Policy(label, name, args))
    for label in given:
        raise BadInput(f'--policy-args: "{label}" is not among --policies: {", ".join(labels)}')
    return tuple(policies)


@dataclass(frozen=True)
class KernelSettings:
    """What the kernel's own scheduler can be told, in /sys/kernel/debug/sched; None: as it is.

    Two are CFS', of kernels before 6.6: the period in which everybody should run, and the least turn. ``vm_cgroups``:
    each VM has a cgroup; without, each vCPU competes for itself, as on a host where nobody has made any. ``boosts``:
    of KERNEL_BOOSTS, what a simulated KVM and kernel do beside what they do by themselves.
    """

    cgroup_mode: str | None = None
    base_slice_us: int | None = None
    latency_us: int | None = None
    min_granularity_us: int | None = None
    vm_cgroups: bool = True
    boosts: frozenset[str] = frozenset()

    @property
    def only_simulated(self) -> str | None:
        """Why no real kernel can be told that; None if one can."""
        if not self.vm_cgroups:
            return "--vm-cgroups: the VMs of a real host have a cgroup each: only a simulated host may have none"
        if self.boosts:
            return "--boost: a real kernel boosts as it does: only a simulated one can be told how"
        if self.latency_us or self.min_granularity_us:
            return "--latency-us, --min-granularity-us: only a simulated CFS can be told that"
        return None


def kernel_settings(args: Sequence[str]) -> KernelSettings:
    """Return what the arguments of the kernel's own scheduler say, or raise BadInput."""
    words = [word for arg in args for word in arg.split("=", 1)]
    mode, vm_cgroups, boosts = None, True, {KERNEL_BOOSTS[0]}
    numbers: dict[str, int] = {}
    flags = words[::2]
    for flag, value in zip(flags, [*words[1::2], ""], strict=False):
        if flags.count(flag) > 1 and flag in (*_KERNEL_FLAGS, *_NUMBERS):
            raise BadInput(f"--policy-args: {flag}: is given twice: must be once")
        if flag == "--cgroup-mode" and value in CGROUP_MODES:
            mode = value
        elif flag == "--vm-cgroups" and value in _YES_NO:
            vm_cgroups = _YES_NO[value]
        elif flag == "--boost" and set(value.split(",")) <= set(KERNEL_BOOSTS):
            boosts = set(value.split(","))
        elif flag in _NUMBERS and re.fullmatch("[0-9]{1,7}", value) and int(value) in _NUMBERS[flag]:
            numbers[flag] = int(value)
        else:
            given, modes = shlex.join(args), ", ".join(CGROUP_MODES)
            allowed = f"--cgroup-mode MODE, one of {modes}, and " + ", ".join(
                f"{known} N, from {of[0]} to {of[-1]}" for known, of in _NUMBERS.items()
            )
            allowed += f", --vm-cgroups yes or no, and --boost WHAT, with commas of {', '.join(KERNEL_BOOSTS)}"
            raise BadInput(f'--policy-args: "{given}" is not allowed for {KERNEL}: must be of {allowed}')
    base_slice_us, latency_us, min_granularity_us = (numbers.get(flag) for flag in _NUMBERS)
    cures = frozenset(boosts) - {KERNEL_BOOSTS[0]}
    return KernelSettings(mode, base_slice_us, latency_us, min_granularity_us, vm_cgroups, cures)


def without_talk(args: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments without those that only make ``cohort run`` say more."""
    return tuple(arg for arg in args if arg not in _TALKATIVE)


def split_binary(args: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the file of ``--binary``, if there is one, and the arguments of its ``cohort run``, or raise BadInput."""
    files: list[str] = []
    others: list[str] = []
    words = iter(args)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == BINARY:
            files.append(value if equals else next(words, ""))
        else:
            others.append(word)
    if len(files) > 1 or "" in files:
        given = shlex.join(args)
        raise BadInput(f'--policy-args: "{given}" is not allowed: {BINARY} must be there once, with a file')
    return (files[0] if files else None), tuple(others)


def sets_file(args: Sequence[str]) -> str | None:
    """Return the file of ``--sets``, as ``cohort run`` would understand the arguments."""
    words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith("--sets=") else [arg])]
    found = [value for flag, value in itertools.pairwise(words) if flag == "--sets"]
    return found[-1] if found else None


def with_sets_file(args: Sequence[str], file: str) -> tuple[str, ...]:
    """Return the arguments with another file of ``--sets``."""
    others = list(args)
    while "--sets" in others:
        at = others.index("--sets")
        del others[at : at + 2]
    return (*(arg for arg in others if not arg.startswith("--sets=")), "--sets", file)


def read_sets(file: str) -> str:
    """Return what a file of ``--sets`` says.

    Raises:
        PlaceError: it cannot be read, or says what no set is; in the words of ``cohort run``.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise PlaceError(f"--sets: cannot read {file}: {why}") from None
    if wrong := _SCHEDULER.wrong_with_sets(text):
        raise PlaceError(f"--sets: {file}: {wrong}")
    return text


def _split_arguments(text: str) -> tuple[str, tuple[str, ...]]:
    label, equals, args = text.partition("=")
    if not equals or not label:
        raise BadInput(f'--policy-args: "{text}" is not allowed: must be LABEL=ARGS, as in "cohort=--boost candidate"')
    try:
        return label.strip(), tuple(shlex.split(args))
    except ValueError as error:
        raise BadInput(f'--policy-args: "{text}" is not allowed: {str(error).lower()}') from None
