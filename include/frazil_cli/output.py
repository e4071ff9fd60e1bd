"""How answers look: tables for people, JSON for programs, errors with their next step."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from frazil.connections import streams_dir
from frazil.errors import FrazilError
from frazil.streams.loading import load_readable_streams

if TYPE_CHECKING:
    from frazil.workspace import Workspace


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


StreamName = Annotated[str, typer.Argument(help="Stream name, as in its file.", metavar="STREAM")]


console = Console(highlight=False, soft_wrap=True)


progress_console = Console(stderr=True, highlight=False, soft_wrap=True)


@cache
def cli_run_id() -> str:
    """Name a run from the command line in the ledger."""
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


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*["" if cell is None else escape(str(cell)) for cell in row])
    console.print(table)


def keep_answers_clean() -> None:
    """Let retries pass in silence: by default they are logged to standard output, into the JSON."""
    from stamina.instrumentation import set_on_retry_hooks

    set_on_retry_hooks(())


def report_progress(text: str, started: float) -> None:
    """Say that a long step ended, with its seconds, where it does not disturb the answer."""
    progress_console.print(f"[dim]{time.monotonic() - started:6.1f} s[/dim]  {text}")


def describe_error(error: FrazilError) -> dict[str, str]:
    """Give a typed error as programs read it."""
    return {"error": error.code, "facts": error.facts, "next_step": error.next_step}


def print_error(error: FrazilError) -> None:
    """Print a typed error for people, beside the answer."""
    progress_console.print(f"[bold red]{error.code}[/bold red]: ", end="")
    progress_console.print(error.facts, markup=False)
    progress_console.print("[bold]Next:[/bold] ", end="")
    progress_console.print(error.next_step, markup=False)


def fail(error: FrazilError, *, as_json: bool) -> NoReturn:
    """Print a typed error and exit 1."""
    if as_json:
        print_json(describe_error(error))
    else:
        print_error(error)
    sys.exit(1)


def format_ranges(ranges: dict[str, dict[int, tuple[int, int]]]) -> str:
    """Write ranges as people read them: `flights-0 [0, 100)`."""
    return "\n".join(
        f"{topic}-{partition} [{start}, {end})"
        for topic, by_partition in ranges.items()
        for partition, (start, end) in by_partition.items()
    )


Answer = TypeVar("Answer")


def choose_streams(stream: str | None) -> "tuple[list[Workspace], list[FrazilError]]":
    """Open the named stream, or all whose files can be read, with the errors of the others.

    Raises:
        ConfigurationError: the named stream's file is missing or cannot be read.
    """
    from frazil.workspace import Workspace, open_workspace

    if stream is not None:
        return [open_workspace(stream, cli_run_id())], []
    found, broken = load_readable_streams(streams_dir())
    return [Workspace(each, streams_dir(), cli_run_id()) for each in found], list(broken)


def ask_streams(
    stream: str | None, question: "Callable[[Workspace], Answer]"
) -> tuple[list[Answer], list[FrazilError]]:
    """Ask each of them; give the answers, and the errors of the rest.

    Raises:
        ConfigurationError: as in `choose_streams`.
    """
    works, errors = choose_streams(stream)
    answers = []
    for work in works:
        try:
            answers.append(question(work))
        except FrazilError as error:
            errors.append(error)
    return answers, errors
