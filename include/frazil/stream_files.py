"""Loading stream files; every error names file, line, field and the fix."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from frazil.errors import StreamFileError, UnknownStreamError
from frazil.streams import Stream

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FIELD_FIRST = re.compile(r"((?:[a-z_]+\.)+\d+): (.*)", re.DOTALL)
_FIX = "mend the file, then run `frazil streams`; docs/streams.md lists every option"


def load_streams(directory: Path) -> tuple[Stream, ...]:
    """Load every `*.yaml` of the folder, sorted by name.

    Raises:
        StreamFileError: a file is broken, or two of them share a name or a table.
    """
    if not directory.is_dir():
        raise StreamFileError(
            f"{directory}: no such folder of stream files",
            "set FRAZIL_STREAMS to the folder, or create include/streams/",
        )
    streams = [load_stream_file(path) for path in sorted(directory.glob("*.yaml"))]
    _refuse_clashes(streams)
    return tuple(streams)


def load_readable_streams(
    directory: Path,
) -> tuple[tuple[Stream, ...], tuple[StreamFileError, ...]]:
    """Load what can be loaded; one broken file stops no other stream."""
    streams: list[Stream] = []
    errors: list[StreamFileError] = []
    for path in sorted(directory.glob("*.yaml")):
        try:
            candidate = load_stream_file(path)
            _refuse_clashes([*streams, candidate])
        except StreamFileError as error:
            errors.append(error)
        else:
            streams.append(candidate)
    return tuple(streams), tuple(errors)


def load_stream(directory: Path, name: str) -> Stream:
    """Load one stream by its name.

    Raises:
        UnknownStreamError: no file has it; the text lists those that exist.
    """
    path = directory / f"{name}.yaml"
    if path.is_file():
        return load_stream_file(path)
    known = ", ".join(sorted(p.stem for p in directory.glob("*.yaml"))) or "none"
    raise UnknownStreamError(
        f"no stream {name!r} in {directory}; known: {known}",
        f"check the spelling, or create {path}",
    )


def load_stream_file(path: Path) -> Stream:
    """Load and validate one file.

    Raises:
        StreamFileError: not readable, no YAML, or not a stream.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, by construction
    except (OSError, UnicodeDecodeError) as error:
        raise StreamFileError(f"{path}: cannot be read: {error}", _FIX) from error
    except yaml.YAMLError as error:
        raise StreamFileError(f"{path}: no valid YAML: {error}", _FIX) from error
    if not isinstance(content, dict):
        raise StreamFileError(f"{path}: a stream file is a mapping of keys", _FIX)
    try:
        stream = Stream.model_validate(content)
    except ValidationError as error:
        node = yaml.compose(text, Loader=_LOADER)
        lines = "\n".join(_describe(path, node, detail) for detail in error.errors())
        raise StreamFileError(lines, _FIX) from error
    if stream.stream != path.stem:
        raise StreamFileError(
            f"{path}: stream: {stream.stream!r} must be named like its file",
            f"rename the file to {stream.stream}.yaml or the stream to {path.stem}",
        )
    return stream


def _describe(path: Path, root: yaml.Node | None, detail: ErrorDetails) -> str:
    """Write one validation error as `file:line: field: what`."""
    location = [part for part in detail["loc"] if not _is_union_label(part)]
    reason = detail["msg"].removeprefix("Value error, ")
    named = _FIELD_FIRST.match(reason)
    if not location and named:
        # A rule over several sections names its field itself: pydantic knows no place for it.
        location = [int(part) if part.isdigit() else part for part in named[1].split(".")]
        reason = named[2]
    field = ".".join(map(str, location)) or "(the file)"
    if detail["type"] == "extra_forbidden":
        reason = "unknown key"
    given = detail.get("input")
    shown = f" (found {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{path}:{_line_of(root, location)}: {field}: {reason}{shown}"


def _is_union_label(part: int | str) -> bool:
    """Recognise pydantic's names of union members, which are no keys of the file."""
    return isinstance(part, str) and (part.startswith(("literal[", "StartAt")))


def _line_of(node: yaml.Node | None, location: list[int | str]) -> int:
    """Find the line of the deepest key on the way that the file has."""
    line = 1
    for part in location:
        child = next((pair for pair in _children(node) if pair[0] == part), None)
        if child is None:
            break
        _, line, node = child
    return line


def _children(node: yaml.Node | None) -> Iterator[tuple[int | str, int, yaml.Node]]:
    """Yield key, line and node of everything directly below."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value.start_mark.line + 1, value


def _refuse_clashes(streams: list[Stream]) -> None:
    """Refuse two files for one table: each would take the other for a foreign writer (B9)."""
    owners: dict[str, str] = {}
    for stream in streams:
        for table in (stream.table.name, stream.dead_letters_table):
            if table in owners:
                raise StreamFileError(
                    f"streams {owners[table]!r} and {stream.stream!r} both fill {table}",
                    "give one of them another table.name",
                )
            owners[table] = stream.stream
