"""Ask one stream, or all: what cannot be asked of one hides no other."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from frazil.cli.output import cli_run_id
from frazil.connections import streams_dir
from frazil.errors import FrazilError
from frazil.stream_files import load_readable_streams

if TYPE_CHECKING:
    from frazil.workspace import Workspace

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
