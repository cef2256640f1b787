# SPDX-License-Identifier: GPL-2.0-only
"""The ``cohortlab`` command: one-line errors, never a traceback."""

from __future__ import annotations

import importlib
import importlib.util
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(__version__, "-V", "--version", prog_name="cohortlab", message="%(prog)s %(version)s")
def cli() -> None:
    """Compare CPU schedulers for SMP virtual machines, simulated and on real kernels."""


def main() -> int:
    """Run the command line; return the exit code."""
    # `kill` ends a comparison like Ctrl-C: guests stopped, complete rounds reported.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _refuse_other_encodings(sys.argv[1:])
        _add_commands()
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


def _refuse_other_encodings(words: list[str]) -> None:
    """Names end up in files of text, and Arrow takes no others."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(word).decode(errors="backslashreplace")
            raise BadInput(f"{shown}: is not in UTF-8: rename what it names") from None


def _add_commands() -> None:
    """Add the subcommands; each lives in its own module."""
    from cohortlab.commands import compare, doctor
    from cohortlab.heldout.commands import held_out
    from cohortlab.recorded.commands import advise, import_recording
    from cohortlab.reproduce.commands import reproduce
    from cohortlab.sim.commands import explain, fidelity
    from cohortlab.sweep.commands import sweep
    from cohortlab.sweep.tune_cli import tune

    commands = (compare, doctor, explain, fidelity, held_out, reproduce, sweep, tune, import_recording, advise)
    for command in commands:
        cli.add_command(command)
    if importlib.util.find_spec("cohortlab.lab.cli") is not None:
        cli.add_command(importlib.import_module("cohortlab.lab.cli").cli, "lab")
        cli.add_command(importlib.import_module("cohortlab.lab.build_cli").emulator)


def _hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f" ('{context.command_path} --help' shows what is allowed)" if context else ""


def _fail(text: str, code: int) -> int:
    print(f"cohortlab: {one_line(text)}", file=sys.stderr)
    return code


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
