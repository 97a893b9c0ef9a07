"""The command line that every scenario shares: its options, its run folder, its one-line errors, its replay line.

Exit codes: 0 every gate passed, 1 a gate failed, 2 inconclusive, 3 bad arguments or bounds file, 4 the harness
itself broke, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import datetime
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

import stress
from fleet.errors import LocalMisuse, StorageFailed
from stress.harness.bounds import Verdict

EXIT_PASS: Final = 0
EXIT_FAILED: Final = 1
EXIT_INCONCLUSIVE: Final = 2
EXIT_MISUSE: Final = 3
EXIT_BROKEN: Final = 4
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143
EXIT_HUNG_UP: Final = 129
EXIT_OF_VERDICT: Final[Mapping[Verdict, int]] = {
    Verdict.PASS: EXIT_PASS,
    Verdict.FAIL: EXIT_FAILED,
    Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE,
}

BOUNDS_FILE: Final = "srad_bounds.toml"
OUR_FILES: Final = ("report.json", "report.html", "events.jsonl", "traceback.txt")
"""What the harness writes into a run folder."""

_SHAPES_OUTPUT_ONLY: Final = frozenset({"out", "format", "quiet"})  # a replay must not overwrite what it replays
_EPILOG: Final = """\b
Exit codes:
  0    every gate passed
  1    a gate failed, or the deadline passed
  2    inconclusive: something a gate needs was not measured
  3    bad arguments or bounds file
  4    the harness itself broke
  130  interrupted with Ctrl-C (143: by SIGTERM)"""


def option(*names: str, **settings: Any) -> click.Option:
    """A ``click.Option`` whose default shows in --help; for a scenario's own options."""
    settings.setdefault("show_default", True)
    return click.Option(names, **settings)


def _no_nan(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("nan is no number of seconds")
    return value


def shared_options(bindings: Sequence[str], modes: Sequence[str] = ()) -> list[click.Parameter]:
    """The options of every scenario; ``--binding`` offers ``bindings``, the first of them by default.

    A scenario with ``modes`` also has a required ``--mode``.
    """
    mode = [
        option("--mode", type=click.Choice(modes), required=True, help="Which part of the scenario to run and judge.")
    ]
    return [
        *(mode if modes else []),
        option(
            "--seed",
            type=click.IntRange(min=0),
            default=1,
            help="Decides everything that chance decides: identities, ties, test data. Replay a run with its seed.",
        ),
        option(
            "--binding",
            type=click.Choice(bindings),
            default=bindings[0],
            help="What carries the peers' links. Rates and ratios of different bindings do not compare.",
        ),
        option(
            "--deadline-seconds",
            type=click.FloatRange(min=0, min_open=True),
            default=1800.0,
            callback=_no_nan,
            help="The run fails if it has not finished by then; the report says how far it came.",
        ),
        option(
            "--out",
            type=click.Path(path_type=Path),
            metavar="DIR",
            show_default="runs/SCENARIO-TIME-SEED",
            help="Folder for report.json, report.html and events.jsonl. Files of an earlier run in it are replaced.",
        ),
        option(
            "--bounds",
            type=click.Path(path_type=Path),
            metavar="FILE",
            show_default=f"{BOUNDS_FILE}, here or beside the package",
            help="The bounds to judge by. Copy the default file and edit it to try tighter ones.",
        ),
        option(
            "--format",
            type=click.Choice(["text", "json"]),
            default="text",
            help="What to print on standard output: a table for people, or exactly the content of report.json.",
        ),
        option("--quiet", is_flag=True, help="No progress on standard error; errors still appear there."),
    ]


def build_command(
    module: str,
    summary: str,
    parameters: Sequence[click.Parameter],
    callback: Callable[[click.Context], int],
) -> click.Command:
    """The command of ``python -m module``. ``callback`` gets click's context and returns the exit code."""

    @click.pass_context
    def run(context: click.Context, /, **_args: object) -> int:
        return callback(context)

    return click.Command(
        f"python -m {module}",
        params=list(parameters),
        callback=run,
        help=summary,
        epilog=_EPILOG,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def invoke(command: click.Command, argv: Sequence[str]) -> int:
    """Run the command and return its exit code; what the user did wrong is one line on stderr and exit code 3."""
    try:
        result = command.main(list(argv), prog_name=command.name, standalone_mode=False)
    except click.Abort:  # click's name for a Ctrl-C that nothing below it handled
        click.echo("interrupted; nothing was run", err=True)
        return EXIT_INTERRUPTED
    except click.UsageError as error:
        return misuse(f"{error.format_message()}: {command.name} --help lists what it takes")
    except click.ClickException as error:
        return misuse(error.format_message())
    except (LocalMisuse, StorageFailed) as error:
        return misuse(str(error))
    return int(result)


def on_terminal() -> bool:
    """Whether standard output is one; it may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def print_result(text: str) -> None:
    """Print on standard output; when nobody reads it (any more), the verdict still stands."""
    try:
        click.echo(text, nl=False)
        sys.stdout.flush()
    except (OSError, AttributeError):  # the reader is gone, or there is no output
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def misuse(message: str) -> int:
    """Print ``error: message`` as one line on stderr; the exit code of bad arguments."""
    click.echo(one_line(f"error: {message}"), err=True)
    return EXIT_MISUSE


def one_line(message: str) -> str:
    """``message`` without line breaks and runs of spaces, and without a full stop before a colon."""
    return " ".join(message.split()).replace(".: ", ": ")


def _beside_the_package() -> Path:
    return Path(stress.__file__).parent.parent


def find_bounds(given: Path | None) -> Path:
    """The bounds file: the given one, else ``srad_bounds.toml`` in the working directory or beside the package.

    Raises ``LocalMisuse`` when there is none.
    """
    if given is not None:
        return given
    for folder in (Path(), _beside_the_package()):
        if (folder / BOUNDS_FILE).is_file():
            return folder / BOUNDS_FILE
    raise LocalMisuse(f"no {BOUNDS_FILE} here or beside the package: name a bounds file with --bounds")


def make_run_folder(given: Path | None, scenario: str, seed: int, now: datetime.datetime) -> Path:
    """Create the folder of one run and see that it can be written to; raises ``LocalMisuse``.

    Without ``given`` it is ``runs/<scenario>-<UTC time>-<seed>``, with a number behind it when that exists.
    """
    return make_folder(given, f"{scenario}-{utc_stamp(now)}-{seed}", OUR_FILES, "events.jsonl")


def utc_stamp(now: datetime.datetime) -> str:
    """The time as folders are named by it."""
    return f"{now.astimezone(datetime.UTC):%Y%m%dT%H%M%SZ}"


def make_folder(given: Path | None, name: str, files: Sequence[str], log: str) -> Path:
    """Create the folder ``given``, or a fresh ``runs/<name>``, without ``files`` and with an empty ``log`` in it.

    Raises ``LocalMisuse`` when it cannot be written to.
    """
    try:
        if given is None:
            folder = _fresh(Path("runs") / name)
        else:
            folder = given
            folder.mkdir(parents=True, exist_ok=True)
        for each in files:  # else an interrupted run would leave the report of an earlier one
            (folder / each).unlink(missing_ok=True)
        (folder / log).touch()
    except OSError as error:
        where = given if given is not None else Path("runs").absolute()
        why = "a file of that name exists" if isinstance(error, FileExistsError) else error.strerror
        raise LocalMisuse(f"cannot write to the folder {where} ({why}): choose another with --out") from None
    return folder


def _fresh(wanted: Path) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            if not folder.exists() or number >= 1000:  # a dangling link, or a folder that nobody ever clears
                raise
            number += 1
        else:
            return folder


def check_not_replaced(out: Path | None, inputs: Sequence[Path | None], files: Sequence[str] = OUR_FILES) -> None:
    """Raise ``LocalMisuse`` when a file that is to be read is one of ``files``, which are replaced in the folder."""
    if out is None:
        return
    ours = {os.path.realpath(out / name) for name in files}
    for path in inputs:
        if path is not None and os.path.realpath(path) in ours:
            raise LocalMisuse(f"the run would replace {path}, which it is to read: choose another --out")


def replay_command(module: str, context: click.Context, bounds: Path) -> str:
    """The shell command that repeats this run from any folder: the seed and every option that is not at its default.

    Paths in it are absolute, and ``bounds``, the file that was found, is named unless it is the one beside the package.
    Options that only shape the output (--out, --format, --quiet) are left out.
    """
    values = dict(context.params)
    if bounds.resolve() != (_beside_the_package() / BOUNDS_FILE).resolve():
        values["bounds"] = bounds
    words = ["python", "-m", module]
    for parameter in context.command.params:
        name, value = parameter.name, values.get(parameter.name or "")
        if not isinstance(parameter, click.Option) or name in _SHAPES_OUTPUT_ONLY or value is None:
            continue
        if name != "seed" and value == parameter.get_default(context):
            continue
        flag = max(parameter.opts, key=len)
        if parameter.is_flag and isinstance(value, bool):
            words.append(flag if value else max(parameter.secondary_opts, key=len, default=flag))
        else:
            for each in value if parameter.multiple else [value]:
                word = str(each.absolute() if isinstance(each, Path) else each)
                words += [f"{flag}={word}"] if word.startswith("-") else [flag, word]
    return shlex.join(words)
