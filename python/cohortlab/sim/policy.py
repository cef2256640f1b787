# SPDX-License-Identifier: GPL-2.0-only
"""Which scheduling class the simulated host has, from a policy's name and the arguments of ``cohort run``.

Presets and axes come from the tables that the scheduler was compiled with, and so does what goes together. The other
flags and the ranges are those of the program ``cohort``; a test holds them against its guide, docs/cohort.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from cohortlab.native import native
from cohortlab.places import PlaceError
from cohortlab.policies import BINARY, KERNEL, KERNEL_BOOSTS, KernelSettings, kernel_settings, read_sets
from cohortlab.tomlmodel import shown

T = TypeVar("T")

_SCHEDULER = native()
_TABLES = _SCHEDULER.policies()
# Values of the knobs: those of bpf/intf.h, and for the others the place in their table.
PLACEMENT = {"any": 0, "balance": 1}
BOOST = {"candidate": 1, "any-mode": 2, "unfair": 4, "migrate": 8, "ipi": 16}
TABLES = {
    axis: {row[0]: number for number, row in enumerate(_TABLES[axis])} for axis in ("order", "gang", "spin", "guard")
}

_AXES = ("placement", "order", "gang", "spin", "boost", "guard")
PRESETS = {row[0]: dict(zip(_AXES, row[1:], strict=False)) for row in _TABLES["preset"]}
# Kinds of boost that a preset has besides, on a host whose KVM catches no vCPU that spins.
UNCAUGHT = {row[0]: sum(BOOST[kind] for kind in row[1].split(",")) for row in _TABLES["uncaught"]}
# In microseconds; the knob has the same name, in nanoseconds, or that of KNOBS.
TIMING = {
    "slice-us": (100, 100_000),
    "boost-slice-us": (50, 100_000),
    "lag-us": (1_000, 1_000_000),
    "starve-us": (1_000, 1_000_000),
    "wakeup-gran-us": (0, 100_000),
    "guard-grace-us": (50, 10_000),
    "guard-keep-us": (10, 5_000),
    "skew-us": (100, 1_000_000),
}
KNOBS = {"skew-us": "skew_limit_ns"}
# What the scheduler has when nobody sets them, in microseconds.
DEFAULTS = {
    "slice-us": 16_000,
    "boost-slice-us": 400,
    "lag-us": 20_000,
    "starve-us": 100_000,
    "wakeup-gran-us": 1_000,
    "guard-grace-us": 1_000,
    "guard-keep-us": 200,
    "skew-us": 3_000,
}
# The first of each pair is at most as long as the second.
AT_MOST = (
    ("slice-us", "starve-us"),
    ("boost-slice-us", "slice-us"),
    ("guard-keep-us", "slice-us"),
    ("wakeup-gran-us", "slice-us"),
    ("wakeup-gran-us", "lag-us"),
)
SBCO_ALPHA = "sbco-alpha"
SPLIT = "split"
SPLIT_RANGE = (1, 100)
TRAFFIC = "traffic"
TRAFFIC_DEFAULT = "interrupts"
TRAFFICS = {name: name for name in ("interrupts", "faults", "both")}
FAULTS = "faults-per-s"
FAULTS_RANGE = (100, 1_000_000)
# As many as an integer of 64 bits has.
_DIGITS_MAX = 19
_OTHERS = (SBCO_ALPHA, SPLIT, TRAFFIC, FAULTS, "sets")
FLAGS = tuple(f"--{name}" for name in (*_AXES, *TIMING, *_OTHERS))

# The kernel's own scheduler: which form of the fair class a kernel has.
KERNEL_RULE = "a kernel's version, 2.6.34 or newer, as in 6.12"
KERNEL_DEFAULT = "7.3"
SIMULATED_MODES = ("smp", "concur")
ANY_MODE, UNFAIR = KERNEL_BOOSTS[1:]
# Since which kernel, the stable ones that took it first (_has()): the base slice is shorter (2ae891b82695), who yields
# forfeits (79104becf42b), and dice decide whether a CPU that goes idle looks for a task (33cf66d88306).
_SHORTER_SLICE = ((6, 6, 93), (6, 12, 31), (6, 14, 9), (6, 15, 0))
_YIELD_FORFEITS = ((6, 6, 120), (6, 12, 63), (6, 17, 13), (6, 18, 2), (6, 19, 0))
_NEWIDLE_DICE = ((6, 1, 160), (6, 6, 120), (6, 12, 65), (6, 18, 5), (6, 19, 0))
# From 75437bb304b2 until 89340d0935c9 a PV lock's waiter halts sooner behind one that is preempted.
_HALTS_BEHIND_PREEMPTED = (4, 11, 0)
_SPINS_BEHIND_PREEMPTED = ((4, 14, 149), (4, 19, 79), (5, 3, 6), (5, 4, 0))
# Of CFS on one CPU before that version: the latency and the least turn (172e082a9111, 21406928afe4, 0bf377bbb0c1).
_CFS_TURNS = (
    ((2, 6, 35), 5_000_000, 1_000_000),
    ((2, 6, 37), 6_000_000, 2_000_000),
    ((6, 6, 0), 6_000_000, 750_000),
)
_CFS_WAKEUP_GRAN_NS = 1_000_000
# Before which kernel: what becomes of the address space of a vCPU that idles.
_LAZY_TLB = (((4, 14, 0), "asked"), ((4, 20, 0), "left"), ((6, 14, 0), "spared"))


# Before which kernel: which wake-ups are left to the vCPU where the task will run (317f394160e9, 518cd6234178,
# f3dd3f674555), where all vCPUs share a cache.
_WAKELIST = (((3, 0, 0), "none"), ((3, 3, 0), "others"), ((6, 0, 0), "none"))


def host_class(
    name: str, args: Sequence[str], kernel: str, *, caught: bool = True, sets: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the host's scheduling class as the simulator reads it.

    ``caught``: KVM catches vCPUs that spin. Where it does not, some policies boost more (UNCAUGHT in bpf/policies.h).
    ``sets``: what files of ``--sets`` say, of those that are not to be read.

    Raises:
        PlaceError: the policy, its arguments or the kernel are not known; the line says what is.
    """
    if name == KERNEL:
        return fair_class(kernel, kernel_settings(args))
    if name not in PRESETS:
        raise PlaceError(
            f'policy "{name}" is not known to the simulator: must be one of {KERNEL}, {", ".join(PRESETS)}'
        )
    return {"class": "ext", "knobs": knobs(name, args, caught=caught), **_of_sets(args, sets or {})}


def _of_sets(args: Sequence[str], sets: Mapping[str, str]) -> dict[str, Any]:
    """Return what the file of ``--sets`` says, ``--split`` and ``--traffic``."""
    given = dict(_pairs(args))
    if f"--{FAULTS}" in given:
        raise PlaceError(f"--{FAULTS} is not simulated: there KVM drops all pages each time: must be left out")
    found: dict[str, Any] = {}
    if file := given.get("--sets"):
        found["sets"] = sets[file] if file in sets else read_sets(file)
    if value := given.get(f"--{SPLIT}"):
        found[SPLIT] = _split(value)
    if value := given.get(f"--{TRAFFIC}"):
        found[TRAFFIC] = value
    return found


def fair_class(kernel: str, settings: KernelSettings | None = None) -> dict[str, Any]:
    """Return the fair class of Linux ``kernel``: CFS, or EEVDF with what it had by then."""
    version = version_of(kernel)
    settings = settings or KernelSettings()
    mode = settings.cgroup_mode
    slice_ns = 1000 * (settings.base_slice_us or 0)
    changed: dict[str, Any] = {"newidle": _newidle(version), "idle_search": _idle_search(version)}
    if version < (5, 10, 0):
        changed["busy_balance"] = "fixed" if version < (3, 16, 0) else "seldom"
    if version < (3, 16, 0):
        changed["imbalance_percent"] = 125
    if version < (5, 7, 0):
        changed["sleepers_weigh"] = False
    if not settings.vm_cgroups:
        changed["groups"] = False
    if UNFAIR in settings.boosts:
        changed["unfair_boost"] = True
    if mode and not settings.vm_cgroups:
        raise PlaceError("--cgroup-mode divides the weight of cgroups, and --vm-cgroups no has none: must be yes")
    if mode and (version < (7, 3, 0) or mode not in SIMULATED_MODES):
        raise PlaceError(
            f'--cgroup-mode: "{mode}" is not known to the simulator for kernel {kernel}: must be one of '
            f"{', '.join(SIMULATED_MODES)}, and the kernel 7.3 or newer"
        )
    if version < (6, 6, 0):
        if slice_ns:
            raise PlaceError(f"--base-slice-us: kernel {kernel} has CFS, which has no base slice: must be 6.6 or newer")
        return {
            "class": "fair",
            "variant": "cfs",
            "buddy_hints": version >= (3, 0, 0),
            "limits_turns": version >= (6, 3, 0),
            **_cfs_turns(settings),
            **changed,
        }
    if settings.latency_us or settings.min_granularity_us:
        raise PlaceError(f"--latency-us, --min-granularity-us: kernel {kernel} has EEVDF: must be older than 6.6")
    variant = "eevdf" if version < (6, 19, 0) else "eevdf-forfeit" if version < (7, 3, 0) else "eevdf-flat"
    return {
        "class": "fair",
        "variant": variant,
        "delay_dequeue": version >= (6, 12, 0),
        "place_deadline_initial": version >= (6, 12, 0),
        "pick_buddy": version >= (6, 14, 0),
        "yield_forfeits": _has(version, _YIELD_FORFEITS),
        "full_weights": version >= (7, 1, 0),
        # Since 7dadeaa6e851 x86 has no model but this and full preemption.
        "lazy_preemption": version >= (7, 0, 0),
        "group_weight": mode or "auto",
        "slice_ns": slice_ns,
        "normalized_slice_ns": _normalized_slice_ns(version),
        **_lag(version),
        **changed,
    }


def _idle_search(version: tuple[int, ...]) -> str:
    """Return where a task that wakes looks for an idle pCPU (select_idle_sibling(); c722f35b513f, 89aafd67f28c)."""
    return "target" if version < (5, 13, 0) else "core" if version < (5, 15, 0) else "recent"


def _newidle(version: tuple[int, ...]) -> str:
    """Return what decides whether a pCPU that goes idle looks for a task (sched_balance_newidle())."""
    if version < (5, 16, 0):
        return "migration-cost"
    return "rate" if version >= (7, 1, 0) else "random" if _has(version, _NEWIDLE_DICE) else "cost"


def _cfs_turns(settings: KernelSettings) -> dict[str, int]:
    """Return what was said of CFS' turns; what was not, the simulator has from Linux 6.1 and the number of pCPUs."""
    given = {"latency_ns": settings.latency_us, "slice_ns": settings.min_granularity_us}
    return {name: 1000 * us for name, us in given.items() if us}


def _normalized_slice_ns(version: tuple[int, ...]) -> int:
    """Return the base slice on one pCPU."""
    return 700_000 if _has(version, _SHORTER_SLICE) else 750_000


def _has(version: tuple[int, ...], since: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a kernel has what came with the last of ``since``, and to stable kernels with the others."""
    return version >= since[-1] or any(version[:2] == stable[:2] and version >= stable for stable in since[:-1])


def kvm_of(kernel: str, settings: KernelSettings | None = None) -> dict[str, Any]:
    """Return what KVM of Linux ``kernel`` does, as the simulator reads it; ``settings``: with what it is changed to.

    ``on_spin_bug``: kvm_vcpu_on_spin() forgets whom it boosted last (from 7e513617da71 to 32bd348be3fa);
    ``yields_to_woken``: it yields to who was woken, too (d73eb57b80b9); ``kick_yields``: kicking a halted vCPU is a
    wish to yield to it (266e85a5ec9f); ``lone_yields_not``: kvm_sched_yield() looks first whether the pCPU has another
    task (72b268a8e930); ``asks_kernel_only``: who was preempted in user mode is not asked (199b5763d329);
    ``asks_interrupted``: unless an interrupt waits for it (52acd22faa1a);
    ``tells_preempted``: guests are told which of their vCPUs are preempted (0b9f6c4615c9); ``tells_always``: also of
    those that halt or are in the middle of an exit. ``shrink`` is the default
    of halt_poll_ns_shrink; before 4.3 nobody polls by default.
    """
    version = version_of(kernel)
    return {
        "on_spin_bug": (6, 13, 0) <= version < (6, 18, 3),
        "yields_to_woken": version >= (5, 3, 0),
        "asks_kernel_only": version >= (4, 14, 0) and not (settings and ANY_MODE in settings.boosts),
        "asks_interrupted": version >= (5, 13, 0),
        "kick_yields": version >= (5, 4, 0),
        "lone_yields_not": version >= (5, 13, 0),
        "tells_preempted": version >= (4, 10, 0),
        "tells_always": version < (5, 19, 0),
        "halt_poll": {"shrink": 0 if version < (6, 11, 0) else 2} | _polling(version),
    }


def _polling(version: tuple[int, ...]) -> dict[str, int]:
    """Return for how long a vCPU polls at most by default, if not for 200 us (aca6ff29c406; b401ee0b85a5, 4.12)."""
    return {"max_ns": 0} if version < (4, 3, 0) else {"max_ns": 400_000} if version < (4, 12, 0) else {}


def window_grows(kernel: str, *, counts: bool) -> bool:
    """Return whether KVM of Linux ``kernel`` has the pause filter's window grow with each exit.

    ``counts``: the filter counts PAUSEs, as AMD's does, for which this came later (b4a2d31da812; 8566ac8b8e7c).
    """
    return version_of(kernel) >= ((4, 17, 0) if counts else (3, 18, 0))


def _lag(version: tuple[int, ...]) -> dict[str, bool]:
    """Return how EEVDF limits lag, and who leaves once it has none, on a host and in a guest."""
    return {"lag_by_tick": version >= (7, 0, 0), "paid_leave": version >= (7, 1, 0)}


def guest_of(kernel: str, vcpus: int) -> dict[str, Any]:
    """Return what Linux ``kernel`` does as a guest of so many vCPUs.

    ``send_ipi``: whether it can send one interrupt to all its other vCPUs; the x2APIC of a KVM guest is in physical
    mode, with shorthands since 43931d350f30. ``slice_ns``, ``latency_ns`` and ``wakeup_gran_ns`` are the scheduler's,
    by the number of vCPUs. ``hrtick``: slices end on time. ``lag_by_tick``, ``paid_leave``: as a host's (fair_class()).
    ``yield_forfeits``: who yields gives up the rest of its slice. ``heeds_preempted``: whether a vCPU that KVM says is
    preempted is spun for, and woken on. ``halts_behind_preempted``: whether who waits behind one for a PV lock halts.
    ``retains_tick``: an idle vCPU keeps its tick until that has woken it once.
    ``lazy_tlb``: which idle vCPUs are asked to flush (94b1b03b519b, where there is PCID; 145f573b89a6; 209954cbc7d0).
    ``wakelist``: which wake-ups are left to the vCPU where the task will run. ``newidle``: what decides whether a vCPU
    that goes idle looks for a task.
    """
    version = version_of(kernel)
    # 1 + log2, of at most 8 (get_update_sysctl_factor()).
    factor = min(vcpus, 8).bit_length()
    made: dict[str, Any] = {
        "send_ipi": "each" if version < (5, 4, 0) else "shorthand",
        "hrtick": version >= (7, 3, 0),
        **_lag(version),
        "yield_forfeits": _has(version, _YIELD_FORFEITS),
        "heeds_preempted": "nothing" if version < (4, 10, 0) else "owners" if version < (4, 18, 0) else "all",
        "scheduler": "cfs" if version < (6, 6, 0) else "eevdf" if version < (6, 12, 0) else "eevdf-delay",
        "halts_behind_preempted": version >= _HALTS_BEHIND_PREEMPTED and not _has(version, _SPINS_BEHIND_PREEMPTED),
        "lazy_preemption": version >= (7, 0, 0),
        "retains_tick": version >= (7, 0, 0),
        "lazy_tlb": next((until for before, until in _LAZY_TLB if version < before), "late"),
        "wakelist": next((until for before, until in _WAKELIST if version < before), "idle"),
        "newidle": _newidle(version),
    }
    if version >= (6, 6, 0):
        return made | {"slice_ns": _normalized_slice_ns(version) * factor}
    latency_ns, least_ns = next(turns for before, *turns in _CFS_TURNS if version < before)
    return made | {
        "latency_ns": latency_ns * factor,
        "slice_ns": least_ns * factor,
        "wakeup_gran_ns": _CFS_WAKEUP_GRAN_NS * factor,
    }


def yields_at_pause_loops(kernel: str) -> bool:
    """Return whether KVM of Linux ``kernel`` yields at a pause-loop exit (217ece6129f2). Before, it slept 100 us."""
    return version_of(kernel) >= (2, 6, 39)


def version_of(kernel: str) -> tuple[int, ...]:
    found = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?!\d)", kernel)
    version = tuple(int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    if version < (2, 6, 34):
        raise PlaceError(f'kernel "{kernel}" is not known to the simulator: must be {KERNEL_RULE}')
    return version


def knobs(name: str, args: Sequence[str], *, caught: bool = True) -> dict[str, int]:
    """Return the knobs that ``cohort run --policy NAME ARGS`` would set on a host whose KVM catches spins, or not."""
    given: dict[str, str] = {}
    timing: dict[str, int] = {}
    others: dict[str, int] = {}
    for flag, value in _pairs(args):
        option = flag.removeprefix("--")
        given[option] = value
        if option in TIMING:
            timing[option] = _whole(flag, value, TIMING[option], "whole microseconds")
        elif option == SBCO_ALPHA:
            others["sbco_alpha"] = _alpha(flag, value)
        elif option == SPLIT:
            _split(value)
        elif option == TRAFFIC:
            _choice(flag, value, TRAFFICS)
        elif option == FAULTS:
            _whole(flag, value, FAULTS_RANGE)
        elif flag == BINARY:
            where = "only real kernels (--on lab, --on host) run another cohort"
            raise PlaceError(f"{BINARY}: the simulator runs the BPF source that it was built with: {where}")
        elif option not in (*_AXES, *_OTHERS):
            raise PlaceError(f"{flag} is not known: must be of {', '.join(FLAGS)}")
    axes = _axes(PRESETS[name], {axis: value for axis, value in given.items() if axis in _AXES})
    chosen = {
        "placement": _choice("--placement", axes["placement"], PLACEMENT),
        "boost": _boost(axes["boost"]),
        **{axis: _choice(f"--{axis}", axes[axis], table) for axis, table in TABLES.items()},
    }
    if refusal := _SCHEDULER.refusal(axes | {TRAFFIC: given.get(TRAFFIC, TRAFFIC_DEFAULT)}, list(given)):
        raise PlaceError(refusal)
    if not caught and "boost" not in given and axes["spin"] == "boost":
        chosen["boost"] |= UNCAUGHT.get(name, 0)
    _contradictions(timing, axes)
    return (
        chosen
        | others
        | {
            KNOBS.get(option, f"{option.replace('-', '_').removesuffix('_us')}_ns"): us * 1000
            for option, us in timing.items()
        }
    )


def _axes(preset: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """Return the preset's axes, each overridden by its flag. Naming kinds of boost chooses ``--spin boost``."""
    spin = given.get("spin", preset["spin"])
    if "boost" in given and "spin" not in given:
        spin = "off" if given["boost"] == "off" else "boost"
    boost = given.get("boost", preset["boost"] if spin == "boost" else "off")
    return preset | given | {"spin": spin, "boost": boost}


def _pairs(args: Sequence[str]) -> list[tuple[str, str]]:
    """Return ``--flag value`` and ``--flag=value`` as pairs; each flag may be there once, as ``cohort run`` has it."""
    pairs: list[tuple[str, str]] = []
    rest = list(args)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("--"):
            raise PlaceError(f'"{flag}" is not allowed: must be a flag and its value, of {", ".join(FLAGS)}')
        if not equals:
            if not rest:
                raise PlaceError(f"{flag}: its value is missing")
            value = rest.pop(0)
        if any(flag == known for known, _ in pairs):
            raise PlaceError(f"{flag}: is given twice: must be once")
        pairs.append((flag, value))
    return pairs


def _choice(flag: str, value: str, known: Mapping[str, T]) -> T:
    if value not in known:
        raise PlaceError(f'{flag}: "{value}" is not allowed: must be one of {", ".join(known)}')
    return known[value]


def _boost(value: str) -> int:
    if value == "off":
        return 0
    words = [word.strip() for word in value.split(",")]
    bits = sum({_choice("--boost", word, BOOST) for word in words})
    if not bits & (BOOST["candidate"] | BOOST["any-mode"] | BOOST["ipi"]):
        raise PlaceError(f'--boost: "{value}" alone boosts nobody: must have candidate, any-mode or ipi')
    return bits


def _alpha(flag: str, value: str) -> int:
    """Return a number or a fraction as the scheduler has it, in 1/65536."""
    over, slash, under = value.partition("/")
    try:
        alpha = float(over) / float(under if slash else 1)
    except (ValueError, ZeroDivisionError):
        alpha = 0.0
    if not 0.01 <= alpha <= 1:
        allowed = "a number from 0.01 to 1, or such a fraction, as 2/3"
        raise PlaceError(f'{flag}: "{value}" is not allowed: must be {allowed}')
    return int(alpha * 65536)


def _split(value: str) -> float:
    low, high = SPLIT_RANGE
    try:
        split = float(value)
    except ValueError:
        split = math.nan
    if not low <= split <= high:
        raise PlaceError(f'--{SPLIT}: "{value}" is not allowed: must be a number from {low} to {high}')
    return split


def _whole(flag: str, value: str, of: tuple[int, int], what: str = "a whole number") -> int:
    low, high = of
    # Python itself refuses to read some thousands of digits.
    is_number = value.isascii() and value.isdecimal() and len(value) <= _DIGITS_MAX
    if not (is_number and low <= int(value) <= high):
        raise PlaceError(f"{flag}: {shown(value)} is not allowed: must be {what} from {low} to {high}")
    return int(value)


def _contradictions(given: dict[str, int], axes: dict[str, str]) -> None:
    """Refuse timing that contradicts itself, or the defaults of what is not given, in the words of ``cohort``.

    What changes nothing beside these axes contradicts nothing.
    """
    timing = {name: us for name, us in (DEFAULTS | given).items() if not _SCHEDULER.refusal(axes, [name])}

    def said(option: str) -> str:
        default = " (the default)" if timing[option] == DEFAULTS[option] else ""
        return f"--{option} {timing[option]}{default}"

    for less, more in AT_MOST:
        if less in timing and more in timing and timing[less] > timing[more]:
            raise PlaceError(f"{said(less)} contradicts {said(more)}: --{less} must be at most --{more}")
