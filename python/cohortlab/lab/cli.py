# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab lab``: try things in the lab by hand."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from cohortlab.errors import BadInput
from cohortlab.lab import emulator as emulators
from cohortlab.lab import guest as guests
from cohortlab.lab.agent import AgentError
from cohortlab.lab.bringup import bring_up
from cohortlab.lab.command import PAYLOAD
from cohortlab.lab.emulator import Emulator
from cohortlab.options import FiniteRange
from cohortlab.places import PlaceCrashed, PlaceError, PlaceFailed
from cohortlab.scenario import NAME_MAX, NAME_RULE, PLE_WINDOW_US_MAX, TLB_MODES, VCPUS_MAX, Tlb
from cohortlab.scenario_check import too_many_vcpus
from cohortlab.tomlmodel import shown

T = TypeVar("T")

# Beyond this shells mean signals.
_EXIT_MAX = 125
# A week.
_TIMEOUT_S_MAX = 604_800
_HOST = "host"
# What can be given beside these options, by parameter; the rest is of a lab that boots.
_BESIDE: dict[str, tuple[str, ...]] = {"stop": (), "attach": ("commands", "files", "timeout")}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("commands", nargs=-1, metavar='["MACHINE: COMMAND"]...')
@click.option("--pcpus", type=click.IntRange(1, 1024), default=2, show_default=True, help="pCPUs of the host.")
@click.option("--vm", "vms", multiple=True, metavar="NAME:VCPUS[:TLB]", help=f"A guest. TLB: {', '.join(TLB_MODES)}.")
@click.option("--memory-mb", type=click.IntRange(128, 2**24), default=512, show_default=True, help="Of each guest.")
@click.option("--ple/--no-ple", default=True, show_default=True, help="Whether PAUSE in guests exits to KVM.")
@click.option(
    "--ple-window-us",
    type=click.IntRange(1, PLE_WINDOW_US_MAX),
    help="How long a guest may spin first. Default: as hardware.",
)
@click.option("--kernel", metavar="RELEASE|FILE", help="Start of a release, such as 6.18. Default: the newest.")
@click.option("--guest-kernel", metavar="RELEASE|FILE", help="The guests' kernel. Default: the host's.")
@click.option("--accel", type=click.Choice(["auto", "kvm", "tcg"]), default="auto", show_default=True)
@click.option("--append", default="", metavar="TEXT", help="More of the host's kernel command line.")
@click.option("--file", "files", multiple=True, type=click.Path(path_type=Path), help="A program for the host's PATH.")
@click.option(
    "--timeout",
    type=FiniteRange(0.001, _TIMEOUT_S_MAX),
    default=300,
    show_default=True,
    metavar="SECS",
    help="Limit of each command.",
)
@click.option("--keep", is_flag=True, help="Leave it running; print its folder.")
@click.option("--share", is_flag=True, help="Do not wait for another lab on this machine to end.")
@click.option("--attach", type=click.Path(path_type=Path), metavar="FOLDER", help="Use one that was left running.")
@click.option("--stop", type=click.Path(path_type=Path), metavar="FOLDER", help="End one that was left running.")
@click.pass_context
def cli(
    context: click.Context,
    commands: tuple[str, ...],
    pcpus: int,
    vms: tuple[str, ...],
    memory_mb: int,
    ple: bool,
    ple_window_us: int | None,
    kernel: str | None,
    guest_kernel: str | None,
    accel: str,
    append: str,
    files: tuple[Path, ...],
    timeout: float,
    keep: bool,
    share: bool,
    attach: Path | None,
    stop: Path | None,
) -> int:
    """Boot the lab and run commands in it, in turn.

    MACHINE is "host" or the name of a guest.

    \b
    cohortlab lab --vm a:2 --vm b:2 "host: uname -r" "a: hackbench -g 2 -l 60"
    cohortlab lab --vm a:2 --keep              boots and stays; prints FOLDER
    cohortlab lab --attach FOLDER "a: dmesg"   commands for the one that stayed
    cohortlab lab --stop FOLDER
    """
    _check_beside(context)
    wanted = [_command(text) for text in commands]
    configs = [_config(text, memory_mb) for text in vms]
    names = [config.name for config in configs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"--vm: {twice} is named twice: must be another name")
    programs: dict[str, Path] = {}
    for path in files:
        if path.name in programs:
            raise BadInput(f"--file: {path}: {path.name} is named twice: must have another name")
        programs[path.name] = _readable(path)
    if ple_window_us is not None and not ple:
        raise BadInput("--ple-window-us: is not allowed with --no-ple: must be left out")
    if stop:
        _or_bad_input(lambda: emulators.stop_kept(stop))
        return 0
    if attach:
        lab = _or_bad_input(lambda: Emulator.attach(attach))
        _check_machines(wanted, _guests_of(lab))
        for name, path in programs.items():
            try:
                lab.host.put(f"{PAYLOAD}/bin/{name}", path.read_bytes())
            except (AgentError, TimeoutError) as error:
                raise PlaceCrashed(f"{name} cannot be put into the lab: {error}") from None
        return _run_all(lab, wanted, timeout)
    _check_machines(wanted, names)
    begin = time.monotonic()
    booted = _or_bad_input(
        lambda: bring_up(
            configs,
            pcpus=pcpus,
            ple=ple,
            ple_window_us=ple_window_us,
            kernel=kernel,
            guest_kernel=guest_kernel,
            accel=accel,
            files=programs,
            keep=keep,
            share=share,
            extra_cmdline=append,
            progress=lambda text, _: print(f"[{time.monotonic() - begin:5.1f} s] {text}", file=sys.stderr),
        )
    )
    if keep:
        # Before the commands: whatever becomes of these, it stays, and who cannot name it cannot end it.
        print(booted.emulator.folder, flush=True)
    try:
        code = _run_all(booted.emulator, wanted, timeout)
        for line in booted.emulator.new_complaints(last=True):
            print(f"host's console: {line}", file=sys.stderr)
        return code
    except PlaceCrashed:
        if booted.state is not None:
            booted.state.remove()  # whatever is wrong may be in it
        raise
    finally:
        if not keep:
            booted.emulator.close()


def _check_beside(context: click.Context) -> None:
    """Raise BadInput for what would be ignored beside --stop or --attach."""
    given = {
        parameter.name: _shown(parameter, value)
        for parameter in context.command.params
        if parameter.name is not None
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
        # Commands come from the command line also where there are none.
        and (value := context.params[parameter.name]) != ()
    }
    for option, beside in _BESIDE.items():
        if option not in given:
            continue
        if ignored := [text for name, text in given.items() if name not in (option, *beside)]:
            allowed = "allowed are MACHINE: COMMAND, --file and --timeout" if beside else "it goes alone"
            raise BadInput(f"{', '.join(ignored)}: not allowed with {given[option]}: {allowed}")


def _shown(parameter: click.Parameter, value: Any) -> str:
    """Return how a parameter was written on the command line: the name of an option, or the first of the commands."""
    if isinstance(parameter, click.Argument):
        return shown(value[0])
    return (parameter.secondary_opts if value is False and parameter.secondary_opts else parameter.opts)[0]


def _check_machines(wanted: list[tuple[str, str]], names: list[str]) -> None:
    known = [_HOST, *names]
    for name, _ in wanted:
        if name not in known:
            raise BadInput(f'"{name}" is no machine of this lab: must be one of {", ".join(known)}')


def _guests_of(lab: Emulator) -> list[str]:
    try:
        return guests.names(lab.host)
    except (AgentError, TimeoutError) as error:
        raise PlaceCrashed(f"host: {error}; the host: {lab.last_words()}") from None


def _or_bad_input(start: Callable[[], T]) -> T:
    """Return what ``start`` does. What it refuses was asked for on the command line."""
    try:
        return start()
    except PlaceFailed:
        raise
    except PlaceError as error:
        raise BadInput(str(error)) from None


def _run_all(lab: Emulator, commands: list[tuple[str, str]], timeout_s: float) -> int:
    """Run the commands; return the exit code of the first that failed."""
    code = 0
    for name, command in commands:
        machine = lab.host if name == _HOST else guests.machine(lab.host, name)
        try:
            done = machine.run(command, timeout_s)
        except AgentError as error:
            raise PlaceCrashed(f"{machine.name}: {error}") from None
        except TimeoutError as error:
            raise PlaceCrashed(f"{machine.name}: {error}; the host: {lab.last_words()}") from None
        sys.stdout.write(done.stdout)
        sys.stdout.flush()
        sys.stderr.write(done.stderr)
        if done.timed_out:
            print(f"{machine.name}: ended after {timeout_s:g} s: {command}", file=sys.stderr)
        code = code or min(abs(done.rc), _EXIT_MAX)
    return code


def _command(text: str) -> tuple[str, str]:
    name, colon, command = text.partition(":")
    if not colon or not name.strip() or not command.strip():
        raise BadInput(f'"{text}" is not allowed: must be MACHINE: COMMAND, such as "host: uname -r"')
    return name.strip(), command.strip()


def _config(text: str, memory_mb: int) -> guests.GuestConfig:
    name, _, rest = text.partition(":")
    vcpus, _, mode = rest.partition(":")
    tlb: Tlb | None = next((tlb for tlb in TLB_MODES if tlb == (mode or "ipi")), None)
    count = int(vcpus) if re.fullmatch("[0-9]{1,3}", vcpus) else 0
    # A longer name is none of a scenario's either, and QEMU takes no path of a socket with a much longer one.
    is_name = re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) and len(name) <= NAME_MAX and name != _HOST
    if not is_name or not 1 <= count <= VCPUS_MAX or tlb is None:
        allowed = f"NAME:VCPUS or NAME:VCPUS:TLB with VCPUS from 1 to {VCPUS_MAX}, TLB one of {', '.join(TLB_MODES)}"
        names = f"NAME is {NAME_RULE}; {_HOST} is the host's"
        raise BadInput(f"--vm: {shown(text)} is not allowed: must be {allowed}; {names}")
    if allowed_with := too_many_vcpus(count, memory_mb, "--memory-mb"):
        raise BadInput(f"--vm: {name}: {count} vCPUs are not allowed: must be {allowed_with}")
    return guests.GuestConfig(name, count, memory_mb, 100, tlb)


def _readable(path: Path) -> Path:
    try:
        with path.open("rb"):
            return path.absolute()
    except OSError as error:
        raise BadInput(f"--file: {path}: cannot be read: {error.strerror}") from None
