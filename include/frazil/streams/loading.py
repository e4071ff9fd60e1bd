"""Loading stream files; every error names file, line, field and the fix."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
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
_SUFFIXES = frozenset({".yaml", ".yml"})
_BOOLEAN = "tag:yaml.org,2002:bool"
_FIX = "fix the stream file, then run `frazil streams`; docs/streams.md lists every option"


def load_readable_streams(
    directory: Path,
) -> tuple[tuple[Stream, ...], tuple[StreamFileError, ...]]:
    """Load all valid streams; return them with the errors of the invalid files.

    Streams that fill the same table are returned, each such pair with an error: the table's
    history, which is not read here, shows which of them is its owner.

    Raises:
        StreamFileError: the folder does not exist.
    """
    _require_folder(directory)
    loaded: list[tuple[Path, Stream]] = []
    errors: list[StreamFileError] = []
    for stem, paths in _group_by_stem(directory).items():
        try:
            path = _choose_file(stem, paths)
            loaded += [(path, stream) for stream in load_streams_of(path)]
        except StreamFileError as error:
            errors.append(error)
    repeated = _find_repeated_names(loaded)
    errors += repeated.values()
    errors += _find_shared_tables(loaded)
    return tuple(stream for _, stream in loaded if stream.stream not in repeated), tuple(errors)


def list_stream_files(directory: Path) -> list[Path]:
    """List the stream files of a folder, `.yaml` and `.yml` in any case; none if it is missing."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.suffix.lower() in _SUFFIXES)


def find_files_of_table(directory: Path, table: str) -> dict[str, Path]:
    """Return stream → file for the streams of a folder that fill a table."""
    found: dict[str, Path] = {}
    for path in list_stream_files(directory):
        with contextlib.suppress(StreamFileError):
            found |= {s.stream: path for s in load_streams_of(path) if s.table.name == table}
    return found


def _require_folder(directory: Path) -> None:
    if not directory.is_dir():
        raise StreamFileError(
            f"{directory}: no such folder of stream files",
            "set FRAZIL_STREAMS to the folder of stream files, or create it",
        )


def _group_by_stem(directory: Path) -> dict[str, list[Path]]:
    """Return the files of a folder by the name of their stream."""
    found: dict[str, list[Path]] = {}
    for path in list_stream_files(directory):
        found.setdefault(path.stem, []).append(path)
    return found


def _choose_file(name: str, paths: Sequence[Path]) -> Path:
    """Return the only file of a stream.

    Raises:
        StreamFileError: there are several.
    """
    if len(paths) == 1:
        return paths[0]
    raise StreamFileError(
        f"stream {name!r} is defined by {' and by '.join(map(str, paths))}; none of them is used",
        "delete or rename all but one of these files",
    )


def load_stream(directory: Path, name: str) -> Stream:
    """Load one stream by its name.

    Raises:
        UnknownStreamError: there is no such stream; the error lists those that exist.
        StreamFileError: its file is invalid, or several files define it.
    """
    files = _group_by_stem(directory)
    stems = [name[: separator.start()] for separator in re.finditer(SEPARATOR, name)]
    routed: list[tuple[Path, Stream]] = []
    for stem in (stem for stem in stems if stem in files):
        try:
            path = _choose_file(stem, files[stem])
            routed += [(path, each) for each in load_streams_of(path) if each.stream == name]
        except StreamFileError:
            if name not in files:
                raise
    if name in files:
        path = _choose_file(name, [*files[name], *(path for path, _ in routed)])
        return load_stream_file(path)
    if routed:
        _choose_file(name, [path for path, _ in routed])
        return routed[0][1]
    known = ", ".join(sorted(files)) or "none"
    raise UnknownStreamError(
        f"no stream {name!r} in {directory}; known: {known}",
        f"check the spelling, or create {directory / name}.yaml",
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
    for section, key in (("route", "takes"), ("table", "state")):  # set when the file is loaded
        given = content.get(section)
        if isinstance(given, dict) and given.get(key) is not None:
            line = _line_of(root, [section, key])
            raise StreamFileError(f"{path}:{line}: {section}.{key}: unknown key", _FIX)
    try:
        stream = Stream.model_validate(content)
        derived = _derive(stream, content)
    except ValidationError as error:
        lines = "\n".join(_describe(path, root, detail) for detail in error.errors())
        raise StreamFileError(lines, _FIX) from error
    if stream.stream != path.stem:
        raise StreamFileError(
            f"{path}: stream: {stream.stream!r} must be the name of the file",
            f"rename the file to {stream.stream}{path.suffix} or the stream to {path.stem}",
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
    return isinstance(part, str) and part.startswith(("literal[", "StartAt", "SequenceBy", "[key]"))


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


def _find_repeated_names(loaded: Sequence[tuple[Path, Stream]]) -> dict[str, StreamFileError]:
    """Return an error for each stream name that two files define, one of them by a route."""
    paths: dict[str, list[Path]] = {}
    for path, stream in loaded:
        paths.setdefault(stream.stream, []).append(path)
    return {
        name: StreamFileError(
            f"two streams are named {name!r}, by {' and by '.join(map(str, found))}; none of them "
            "is used",
            "rename the file, or the value in `route.tables`",
        )
        for name, found in paths.items()
        if len(found) > 1
    }


def _find_shared_tables(loaded: Sequence[tuple[Path, Stream]]) -> Iterator[StreamFileError]:
    """Yield an error for each table that several streams fill; its owner continues."""
    owners: dict[str, dict[str, Path]] = {}
    for path, stream in loaded:
        owners.setdefault(stream.table.name, {})[stream.stream] = path
    for table, found in owners.items():
        if len(found) > 1:
            names = " and ".join(map(repr, found))
            verb = "both fill" if len(found) == 2 else "fill"  # noqa: PLR2004 - a pair
            yield StreamFileError(
                f"streams {names} {verb} {table} ({', '.join(map(str, found.values()))}); only the "
                "stream recorded in the table's history continues",
                "change table.name in the other file, or delete it",
            )
