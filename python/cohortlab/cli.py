# SPDX-License-Identifier: GPL-2.0-only
"""The ``cohortlab`` command: one-line errors, never a traceback."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

import click

from cohortlab import __version__
from cohortlab.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED, BadInput, one_line
from cohortlab.places import PlaceCrashed, PlaceError

TRACEBACK = "COHORTLAB_TRACEBACK"


# Where each subcommand is. It is imported when it is named: what one lacks, as the simulator's module, is no error of
# another, least of all of `doctor`.
COMMANDS = {
    "advise": "cohortlab.recorded.commands:advise",
    "compare": "cohortlab.commands:compare",
    "doctor": "cohortlab.doctor:command",
    "emulator": "cohortlab.lab.build_cli:emulator",
    "explain": "cohortlab.sim.commands:explain",
    "fidelity": "cohortlab.sim.commands:fidelity",
    "held-out": "cohortlab.heldout.commands:held_out",
    "import": "cohortlab.recorded.commands:import_recording",
    "lab": "cohortlab.lab.cli:cli",
    "reproduce": "cohortlab.reproduce.commands:reproduce",
    "sweep": "cohortlab.sweep.commands:sweep",
    "tune": "cohortlab.sweep.tune_cli:tune",
}


class Subcommands(click.Group):
    """The subcommands of ``COMMANDS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, _, name = COMMANDS.get(cmd_name, "").partition(":")
        try:
            found = getattr(importlib.import_module(module), name) if module else None
        except PlaceError as error:
            return _missing(cmd_name, error)
        assert found is None or isinstance(found, click.Command)
        return found


def _missing(name: str, why: PlaceError) -> click.Command:
    """Return the subcommand that says why it is not here; `--help` lists it."""

    def refuse(**_: object) -> NoReturn:
        raise why

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, anything, refuse, help=f"Not here: {why}.", add_help_option=False)


@click.group(cls=Subcommands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(__version__, "-V", "--version", prog_name="cohortlab", message="%(prog)s %(version)s")
def cli() -> None:
    """Compare CPU schedulers for SMP virtual machines, simulated and on real kernels."""


# For click, which looks there for what may have been meant; `get_command` is what it calls.
cli.commands.update(dict.fromkeys(COMMANDS))  # type: ignore[arg-type]


def main() -> int:
    """Run the command line; return the exit code."""
    # `kill` ends a comparison like Ctrl-C: guests stopped, complete rounds reported.
    signal.signal(signal.SIGTERM, _interrupt)
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal's encoding has not, as "÷", is no reason to show nothing.
        sys.stdout.reconfigure(errors="replace")
    try:
        _refuse_other_encodings(sys.argv[1:])
        code = cli.main(standalone_mode=False)
        # Here, where a full disk is told as such, and not when the interpreter ends.
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _fail(f"{error.format_message().rstrip('.')}{_hint(error)}", EXIT_BAD_INPUT)
    except BadInput as error:
        return _fail(str(error), EXIT_BAD_INPUT)
    except (PlaceError, PlaceCrashed) as error:
        return _fail(str(error), EXIT_FAILED)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader (`| head`) has gone; the interpreter must not try to flush to it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_FAILED)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({os.path.basename(at.filename)}:{at.lineno})"  # noqa: PTH119
        return _fail(f"internal error: {what}; {TRACEBACK}=1 shows where", EXIT_FAILED)


def _replace_closed_streams() -> None:
    """Send to nowhere what would be printed to a stream that whoever has started this has closed.

    Python would print to standard output what is for standard error, and the next file that is opened would have the
    number to which children print.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # It gets the lowest number that is free.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nowhere, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8", errors="replace"))


def _refuse_other_encodings(words: list[str]) -> None:
    """Names end up in files of text, and Arrow takes no others."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(word).decode(errors="backslashreplace")
            raise BadInput(f"{shown}: is not in UTF-8: rename what it names") from None


def _hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f" ('{context.command_path} --help' shows what is allowed)" if context else ""


def _fail(text: str, code: int) -> int:
    print(f"cohortlab: {one_line(text)}", file=sys.stderr)
    return code


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
