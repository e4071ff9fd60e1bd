"""Options that commands share, and output: tables, JSON, errors with their next step."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer
from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from frazil.environment import streams_dir
from frazil.errors import FrazilError, UnavailableError, hide_message
from frazil.streams.loading import load_named_streams, load_readable_streams

if TYPE_CHECKING:
    from frazil.workspace import Workspace


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StreamName = Annotated[str, typer.Argument(help="Name of the stream.", metavar="STREAM")]
AnyStream = Annotated[
    str | None,
    typer.Argument(
        help="One stream, or a file with a topic pattern; default: all.", metavar="STREAM"
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run/--no-dry-run", help="Preview only; nothing is changed.")
]
By = Annotated[str, typer.Option("--by", help="Person who decides; required to apply.")]
Reason = Annotated[str, typer.Option("--reason", help="Reason to record; required to apply.")]
Offsets = Annotated[
    list[str] | None,
    typer.Option(help="Range TOPIC:PARTITION:START-END, END exclusive, or one offset; repeatable."),
]

ADD_NO_DRY_RUN = "Dry run: nothing was changed. To apply, add --no-dry-run."
ADD_AUTHOR = "Dry run: nothing was changed. To apply, add --by, --reason and --no-dry-run."

console = Console(highlight=False, soft_wrap=True)
progress_console = Console(stderr=True, highlight=False, soft_wrap=True)
Result = TypeVar("Result")


@cache
def cli_run_id() -> str:
    """Return the run id of this process, as snapshots and the timeline record it."""
    return f"cli-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"


def print_json(content: object) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(content, indent=2, default=_plain) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def print_result(result: object, text: str, *, as_json: bool) -> None:
    """Print a result as JSON, or its text for people."""
    if as_json:
        print_json(result)
    else:
        console.print(text, markup=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table that breaks lines between words only, so that ids and ranges can be copied."""
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(word) for text in column for word in (*text.split(), ""))
        for column in zip(columns, *texts, strict=True)
    ]
    table = Table(title=title, title_justify="left", header_style="bold")
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name, min_width=width)
    for row in texts:
        table.add_row(*map(escape, row))
    borders = 3 * len(columns) + 1
    console.print(table, width=max(console.width, sum(widths) + borders))


def silence_retry_logs() -> None:
    """Switch off stamina's log of retries: it goes to standard output, where the JSON is."""
    from stamina.instrumentation import set_on_retry_hooks

    set_on_retry_hooks(())


def report_progress(text: str, started: float) -> None:
    """Print to standard error that a step ended, with the seconds since `started`."""
    progress_console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {text}")


def describe_error(error: FrazilError) -> dict[str, str]:
    """Return a typed error as JSON fields."""
    return {"error": error.code, "facts": error.facts, "next_step": error.next_step}


def print_error(error: FrazilError) -> None:
    """Print a typed error to standard error."""
    progress_console.print(f"[bold red]{error.code}[/bold red]: ", end="")
    progress_console.print(error.facts, markup=False)
    progress_console.print("[bold]Next:[/bold] ", end="")
    progress_console.print(error.next_step, markup=False)


def print_all(
    results: Sequence[Result],
    errors: Sequence[FrazilError],
    show: Callable[[Sequence[Result]], None],
    *,
    as_json: bool,
) -> None:
    """Print results and errors, as one JSON list if requested; exit 1 if there are errors."""
    if as_json:
        print_json([*results, *map(describe_error, errors)])
    else:
        show(results)
        for error in errors:
            print_error(error)
    if errors:
        raise typer.Exit(1)


def fail(error: FrazilError, *, as_json: bool) -> NoReturn:
    """Print a typed error, as JSON if requested, and exit 1."""
    if as_json:
        print_json(describe_error(error))
    else:
        print_error(error)
    sys.exit(1)


def format_ranges(ranges: dict[str, dict[int, tuple[int, int]]]) -> str:
    """Format ranges, one a line, as `--offsets` takes them: `flights:0:0-100`."""
    from frazil.ledger.offsets import describe_range, iterate_ranges, unpack_ranges

    return "\n".join(describe_range(*each) for each in iterate_ranges(unpack_ranges(ranges)))


def open_streams(stream: str | None) -> "tuple[list[Workspace], list[FrazilError]]":
    """Open the named stream, all of a file with a topic pattern, or all streams.

    Return the errors of unreadable files, or of topics without a stream, beside them.

    Raises:
        ConfigurationError: the named stream has no file, or its file is invalid.
    """
    from frazil.workspace import Workspace

    found, broken = (
        load_readable_streams(streams_dir())
        if stream is None
        else load_named_streams(streams_dir(), stream)
    )
    return [Workspace(each, streams_dir(), cli_run_id()) for each in found], list(broken)


LONG_READ_SECONDS = 600.0
"""The time limit for one stream if its whole history is read."""
READ_SECONDS = 30.0
"""The time limit for one stream in `read_streams`; a broker counts as down after 10 to 20 s."""


def read_streams(
    stream: str | None, read: "Callable[[Workspace], Result]", seconds: float | None = None
) -> tuple[list[Result], list[FrazilError]]:
    """Read the named stream, or all streams, up to eight at a time, each within a time limit.

    Return the results, and the errors of the rest.

    Raises:
        ConfigurationError: as in `open_streams`.
    """
    from frazil.observability.parallel_reads import read_all

    works, errors = open_streams(stream)
    results: list[Result] = []
    reads = {work.stream.stream: partial(read, work) for work in works}
    for name, found in read_all(reads, seconds or READ_SECONDS).items():
        if isinstance(found, Exception):
            errors.append(_explain_failure(name, found))
        else:
            results.append(found)
    return results, errors


def _explain_failure(stream: str, error: Exception) -> FrazilError:
    from frazil.observability.parallel_reads import LateReadError

    if isinstance(error, LateReadError):
        step = "`frazil doctor` checks the services of this machine; then try again"
        return UnavailableError(f"stream {stream}: {error}", step)
    return hide_message(error, f"stream {stream}")
