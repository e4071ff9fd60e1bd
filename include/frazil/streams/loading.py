"""Loading stream files; every error names file, line, field and the fix."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from frazil.errors import StreamFileError, UnknownStreamError
from frazil.streams.column_types import FieldError
from frazil.streams.models import Stream
from frazil.streams.routes import SEPARATOR, derived_name

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BOOLEAN = "tag:yaml.org,2002:bool"
_FIX = "fix the stream file, then run `frazil streams`; docs/streams.md lists every option"


def load_readable_streams(
    directory: Path,
) -> tuple[tuple[Stream, ...], tuple[StreamFileError, ...]]:
    """Load all valid streams; return them with the errors of the invalid files.

    Raises:
        StreamFileError: the folder does not exist.
    """
    streams: list[Stream] = []
    errors: list[StreamFileError] = []
    owners: dict[str, str] = {}
    for path in _list_files(directory):
        try:
            candidates = load_streams_of(path)
            owners |= _check_unique(candidates, owners)
        except StreamFileError as error:
            errors.append(error)
        else:
            streams += candidates
    return tuple(streams), tuple(errors)


def _list_files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise StreamFileError(
            f"{directory}: no such folder of stream files",
            "set FRAZIL_STREAMS to the folder, or create include/streams/",
        )
    return sorted(directory.glob("*.yaml"))


def load_stream(directory: Path, name: str) -> Stream:
    """Load one stream by its name.

    Raises:
        UnknownStreamError: there is no such stream; the error lists those that exist.
        StreamFileError: its file is invalid.
    """
    path = directory / f"{name}.yaml"
    if path.is_file():
        return load_stream_file(path)
    for separator in re.finditer(SEPARATOR, name):
        routed = directory / f"{name[: separator.start()]}.yaml"
        found = load_streams_of(routed) if routed.is_file() else ()
        for stream in found:
            if stream.stream == name:
                return stream
    known = ", ".join(sorted(p.stem for p in directory.glob("*.yaml"))) or "none"
    raise UnknownStreamError(
        f"no stream {name!r} in {directory}; known: {known}",
        f"check the spelling, or create {path}",
    )


def load_stream_file(path: Path) -> Stream:
    """Load and validate one file; with a route, return the stream of the unrouted records.

    Raises:
        StreamFileError: the file cannot be read, or is not a valid stream file.
    """
    return load_streams_of(path)[0]


def load_streams_of(path: Path) -> tuple[Stream, ...]:
    """Load all streams of one file, the one named like the file first; without a route, one.

    Raises:
        StreamFileError: the file cannot be read, or is not a valid stream file.
    """
    try:
        root, content = _read_yaml(path)
    except (OSError, UnicodeDecodeError) as error:
        raise StreamFileError(f"{path}: cannot be read: {error}", _FIX) from error
    except yaml.YAMLError as error:
        raise StreamFileError(f"{path}: not valid YAML: {error}", _FIX) from error
    if not isinstance(content, dict):
        raise StreamFileError(f"{path}: a stream file must be a mapping of keys", _FIX)
    given = content.get("route")
    if isinstance(given, dict) and "takes" in given:
        line = _line_of(root, ["route", "takes"])
        raise StreamFileError(f"{path}:{line}: route.takes: unknown key", _FIX)
    try:
        stream = Stream.model_validate(content)
        derived = _derive(stream, content)
    except ValidationError as error:
        lines = "\n".join(_describe(path, root, detail) for detail in error.errors())
        raise StreamFileError(lines, _FIX) from error
    if stream.stream != path.stem:
        raise StreamFileError(
            f"{path}: stream: {stream.stream!r} must be the name of the file",
            f"rename the file to {stream.stream}.yaml or the stream to {path.stem}",
        )
    return derived or (stream,)


def _derive(stream: Stream, content: dict[str, Any]) -> tuple[Stream, ...]:
    """Return the streams of a route; that of the unrouted records has no rows, so no suite."""
    if stream.route is None:
        return ()
    unrouted = Stream.model_validate({**content, "quality": {}})
    return unrouted, *(
        Stream.model_validate(
            {
                **content,
                "stream": derived_name(stream.stream, value),
                "table": {**content["table"], "name": table},
                "route": {**content["route"], "takes": value},
            }
        )
        for value, table in stream.route.tables.items()
    )


def _read_yaml(path: Path) -> tuple[yaml.Node | None, object]:
    """Return the root node, which has line numbers, and the file's content."""
    loader = _LOADER(path.read_text(encoding="utf-8"))
    try:
        root = loader.get_single_node()
        # Before construct_document, which merges `<<` into the nodes as if keys were repeated.
        problems = "\n".join(f"{path}:{each}" for each in _find_bad_keys(root, (), set()))
        if problems:
            raise StreamFileError(problems, _FIX)
        return root, loader.construct_document(root) if root else None
    finally:
        loader.dispose()


def _find_bad_keys(
    node: yaml.Node | None, path: tuple[int | str, ...], seen: set[int]
) -> Iterator[str]:
    """Yield `line: field: problem` for duplicate keys, and keys that YAML reads as booleans."""
    if id(node) in seen:  # an alias of a node that was checked already
        return
    seen.add(id(node))
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.tag == _BOOLEAN:
            field = _name_field((*path, key.value))
            yield f"{key.start_mark.line + 1}: {field}: a boolean in YAML; put it in quotes"
    lines: dict[int | str, int] = {}
    for key, line, child in _children(node):
        if key in lines:
            field = _name_field((*path, key))
            yield f"{line}: {field}: duplicate key, first in line {lines[key]}"
        lines.setdefault(key, line)
        if not isinstance(child, yaml.ScalarNode):
            yield from _find_bad_keys(child, (*path, key), seen)


def _name_field(path: Iterable[int | str]) -> str:
    return ".".join(map(str, path))


def _describe(path: Path, root: yaml.Node | None, detail: ErrorDetails) -> str:
    """Return one validation error as `file:line: field: reason`."""
    location = [part for part in detail["loc"] if not _is_label(part)]
    reason = detail["msg"].removeprefix("Value error, ")
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        location += cause.path
    field = _name_field(location) or "(the file)"
    if detail["type"] == "extra_forbidden":
        reason = "unknown key"
    given = detail.get("input")
    shown = f" (found {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{path}:{_line_of(root, location)}: {field}: {reason}{shown}"


def _is_label(part: int | str) -> bool:
    """Return whether pydantic added this part of a location; it is not a key of the file."""
    return isinstance(part, str) and part.startswith(("literal[", "StartAt", "[key]"))


def _line_of(node: yaml.Node | None, location: list[int | str]) -> int:
    """Return the line of a field, or of its closest parent that the file has."""
    line = 1
    for part in location:
        found = [pair for pair in _children(node) if pair[0] == part]
        if not found:
            break
        _, line, node = found[-1]  # merged keys come first and are overridden by the section's own
    return line


def _children(node: yaml.Node | None) -> Iterator[tuple[int | str, int, yaml.Node]]:
    """Yield key (or index), line and node of each child."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value.start_mark.line + 1, value


def _check_unique(streams: Iterable[Stream], owners: Mapping[str, str]) -> dict[str, str]:
    """Check that no earlier stream has these names and tables; return name or table → stream.

    Two streams that fill the same table would each see the other as another writer (B9).

    Raises:
        StreamFileError: a name or a table is used twice.
    """
    found: dict[str, str] = {}
    for stream in streams:
        if stream.stream in owners or stream.stream in found:
            raise StreamFileError(
                f"two streams are named {stream.stream!r}: one of a route and one of a file",
                "rename the file, or the value in `route.tables`",
            )
        found[stream.stream] = stream.stream
        for table in (stream.table.name, stream.dead_letters_table):
            if owner := found.get(table) or owners.get(table):
                raise StreamFileError(
                    f"streams {owner!r} and {stream.stream!r} both fill {table}",
                    "change table.name of one of them",
                )
            found[table] = stream.stream
    return found
