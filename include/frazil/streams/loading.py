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
_FIX = "mend the file, then run `frazil streams`; docs/streams.md lists every option"


def load_readable_streams(
    directory: Path,
) -> tuple[tuple[Stream, ...], tuple[StreamFileError, ...]]:
    """Load what can be loaded; one broken file stops no other stream.

    Raises:
        StreamFileError: there is no folder at all.
    """
    streams: list[Stream] = []
    errors: list[StreamFileError] = []
    taken: dict[str, str] = {}
    for path in _list_files(directory):
        try:
            candidates = load_streams_of(path)
            taken |= _claim(candidates, taken)
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
        UnknownStreamError: no file has it; the text lists those that exist.
    """
    path = directory / f"{name}.yaml"
    if path.is_file():
        return load_stream_file(path)
    for begin in re.finditer(SEPARATOR, name):
        routed = directory / f"{name[: begin.start()]}.yaml"
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
    """Load and validate one file; of a route it is the stream that takes the rest.

    Raises:
        StreamFileError: not readable, no YAML, or not a stream.
    """
    return load_streams_of(path)[0]


def load_streams_of(path: Path) -> tuple[Stream, ...]:
    """Load all streams of one file, that of its own name first; without a route there is one.

    Raises:
        StreamFileError: not readable, no YAML, or not a stream.
    """
    try:
        root, content = _read_yaml(path)
    except (OSError, UnicodeDecodeError) as error:
        raise StreamFileError(f"{path}: cannot be read: {error}", _FIX) from error
    except yaml.YAMLError as error:
        raise StreamFileError(f"{path}: no valid YAML: {error}", _FIX) from error
    if not isinstance(content, dict):
        raise StreamFileError(f"{path}: a stream file is a mapping of keys", _FIX)
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
            f"{path}: stream: {stream.stream!r} must be named like its file",
            f"rename the file to {stream.stream}.yaml or the stream to {path.stem}",
        )
    return derived or (stream,)


def _derive(stream: Stream, content: dict[str, Any]) -> tuple[Stream, ...]:
    """Make the streams of a route; the one of the rest has no rows that a suite could judge."""
    if stream.route is None:
        return ()
    rest = Stream.model_validate({**content, "quality": {}})
    return rest, *(
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
    """Read nodes, which know their lines, and what they mean."""
    loader = _LOADER(path.read_text(encoding="utf-8"))
    try:
        root = loader.get_single_node()
        # Now: the loader writes what `<<` merges into the nodes, where it would look repeated.
        problems = "\n".join(f"{path}:{each}" for each in _find_bad_keys(root, (), set()))
        if problems:
            raise StreamFileError(problems, _FIX)
        return root, loader.construct_document(root) if root else None
    finally:
        loader.dispose()


def _find_bad_keys(
    node: yaml.Node | None, place: tuple[int | str, ...], seen: set[int]
) -> Iterator[str]:
    """Yield `line: field: what` for keys that YAML would take otherwise than they are written."""
    if id(node) in seen:  # an alias of what was looked at already
        return
    seen.add(id(node))
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.tag == _BOOLEAN:
            field = _name_field((*place, key.value))
            yield f"{key.start_mark.line + 1}: {field}: a boolean in YAML; put it in quotes"
    lines: dict[int | str, int] = {}
    for key, line, child in _children(node):
        if key in lines:
            field = _name_field((*place, key))
            yield f"{line}: {field}: said twice, first in line {lines[key]}"
        lines.setdefault(key, line)
        if not isinstance(child, yaml.ScalarNode):
            yield from _find_bad_keys(child, (*place, key), seen)


def _name_field(place: Iterable[int | str]) -> str:
    return ".".join(map(str, place))


def _describe(path: Path, root: yaml.Node | None, detail: ErrorDetails) -> str:
    """Write one validation error as `file:line: field: what`."""
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
    """Recognise pydantic's own words, for union members and keys, which are no keys of the file."""
    return isinstance(part, str) and part.startswith(("literal[", "StartAt", "[key]"))


def _line_of(node: yaml.Node | None, location: list[int | str]) -> int:
    """Find the line of the deepest key on the way that the file has."""
    line = 1
    for part in location:
        found = [pair for pair in _children(node) if pair[0] == part]
        if not found:
            break
        _, line, node = found[-1]  # merged keys come first, the section's own override them
    return line


def _children(node: yaml.Node | None) -> Iterator[tuple[int | str, int, yaml.Node]]:
    """Yield key, line and node of everything directly below."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value.start_mark.line + 1, value


def _claim(streams: Iterable[Stream], taken: Mapping[str, str]) -> dict[str, str]:
    """Give what these streams take, and who takes it: names have no dot, tables have one.

    Raises:
        StreamFileError: it is taken already; two streams of one table would each take the other
            for a foreign writer (B9).
    """
    claims: dict[str, str] = {}
    for stream in streams:
        if stream.stream in taken or stream.stream in claims:
            raise StreamFileError(
                f"two streams are named {stream.stream!r}: a route's, and a file's",
                "rename the file, or the value in `route.tables`",
            )
        claims[stream.stream] = stream.stream
        for table in (stream.table.name, stream.dead_letters_table):
            if owner := claims.get(table) or taken.get(table):
                raise StreamFileError(
                    f"streams {owner!r} and {stream.stream!r} both fill {table}",
                    "give one of them another table.name",
                )
            claims[table] = stream.stream
    return claims
