# SPDX-License-Identifier: GPL-2.0-only
"""Try things in the lab: ``python -m cohortlab.lab.shell --help``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from cohortlab.errors import BadInput
from cohortlab.lab import emulator as emulators
from cohortlab.lab import guest as guests
from cohortlab.lab.agent import AgentError, Machine
from cohortlab.lab.bringup import bring_up
from cohortlab.lab.emulator import Emulator
from cohortlab.places import PlaceCrashed, PlaceError

_EPILOG = """\
A command is MACHINE: SHELL-COMMAND, for example "host: uname -r" or "vm1: nproc"; they run in turn.
  shell --vm vm1:2 --vm vm2:2 "host: uname -r" "vm1: hackbench -g 2 -l 60 -f 5"
  shell --keep --file ./cohort "host: cohort --version"     boots and stays; prints its folder
  shell --attach FOLDER "vm1: dmesg | tail"                 more commands in the one that stayed
  shell --stop FOLDER
Files given by --file are in the host's PATH. The host's console is FOLDER/console.log.
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cohortlab.lab.shell", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commands", nargs="*", metavar="MACHINE: COMMAND")
    parser.add_argument("--pcpus", type=int, default=2, help="pCPUs of the host (default 2)")
    parser.add_argument(
        "--vm", action="append", default=[], metavar="NAME:VCPUS[:TLB]", help="a guest; TLB: ipi, kvm-pv, hypercall"
    )
    parser.add_argument("--memory-mb", type=int, default=512, help="memory of each guest (default 512)")
    parser.add_argument("--no-ple", action="store_true", help="PAUSE in guests does not exit")
    parser.add_argument("--kernel", help="file, or start of a release such as 6.18 (default: the newest)")
    parser.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto")
    parser.add_argument(
        "--file", action="append", default=[], type=Path, metavar="PROGRAM", help="put it into the host"
    )
    parser.add_argument(
        "--put", action="append", default=[], type=Path, metavar="PROGRAM", help="the same, with --attach"
    )
    parser.add_argument("--append", default="", help="more of the host's kernel command line")
    parser.add_argument("--timeout", type=float, default=300, metavar="SECS", help="limit of each command")
    parser.add_argument("--keep", action="store_true", help="leave it running")
    parser.add_argument("--share", action="store_true", help="do not wait for another lab on this machine to end")
    parser.add_argument("--attach", type=Path, metavar="FOLDER", help="use one that was left running")
    parser.add_argument("--stop", type=Path, metavar="FOLDER", help="end one that was left running")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except (PlaceError, BadInput) as error:
        print(f"cohortlab: {error}", file=sys.stderr)
        return 2
    except (PlaceCrashed, AgentError, TimeoutError) as error:
        print(f"cohortlab: {error}", file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    if args.stop:
        emulators.stop_kept(args.stop)
        return 0
    commands = [_command(text) for text in args.commands]
    if args.attach:
        lab = Emulator.attach(args.attach)
    else:
        begin = time.monotonic()
        configs = [_config(text, args.memory_mb) for text in args.vm]
        lab = bring_up(
            configs,
            pcpus=args.pcpus,
            ple=not args.no_ple,
            kernel=args.kernel,
            accel=args.accel,
            files={path.name: path for path in args.file},
            keep=args.keep,
            share=args.share,
            extra_cmdline=args.append,
            progress=lambda text, _: print(f"[{time.monotonic() - begin:5.1f} s] {text}", file=sys.stderr),
        ).emulator
    try:
        for program in args.put:
            lab.host.put(f"{emulators.PAYLOAD}/bin/{program.name}", program.read_bytes())
        rc = 0
        for name, command in commands:
            done = _machine(lab, name).run(command, args.timeout)
            sys.stdout.write(done.stdout)
            sys.stderr.write(done.stderr)
            if done.timed_out:
                print(f"{name}: `{command}` was ended after {args.timeout:g} s", file=sys.stderr)
            rc = rc or done.rc
        for line in lab.new_complaints() if not args.attach else []:
            print(f"console: {line}", file=sys.stderr)
        if args.keep:
            print(lab.folder)
        return min(abs(rc), 125)
    finally:
        if not (args.keep or args.attach):
            lab.close()


def _command(text: str) -> tuple[str, str]:
    name, colon, command = text.partition(":")
    if not colon:
        raise PlaceError(f'"{text}" is not allowed: must be MACHINE: COMMAND, such as "host: uname -r"')
    return name.strip(), command.strip()


def _config(text: str, memory_mb: int) -> guests.GuestConfig:
    name, _, rest = text.partition(":")
    vcpus, _, tlb = rest.partition(":")
    if not name or not vcpus.isdecimal() or tlb not in ("", *guests.TLB_MODES):
        allowed = f"NAME:VCPUS or NAME:VCPUS:TLB with TLB one of {', '.join(guests.TLB_MODES)}"
        raise PlaceError(f'--vm: "{text}" is not allowed: must be {allowed}')
    return guests.GuestConfig(name, int(vcpus), memory_mb, 100, tlb or "ipi")


def _machine(lab: Emulator, name: str) -> Machine:
    return lab.host if name == "host" else guests.machine(lab.host, name)


if __name__ == "__main__":
    sys.exit(main())
