"""Loading stream files; every error names file, line, field and the fix."""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import ValidationError

from frazil.errors import FrazilError, StreamFileError, UnknownStreamError
from frazil.streams.column_types import FieldError
from frazil.streams.models import STREAM_NAME, Stream
from frazil.streams.routes import SEPARATOR, derived_name
from frazil.streams.topic_lists import (
    read_known_files,
    read_topics,
    remember_files,
    topic_list_path,
)
from frazil.streams.topic_patterns import (
    Expansion,
    TopicRule,
    expand_topics,
    fill_content,
    find_rule,
    without_placeholders,
)
from frazil.streams.yaml_files import (
    FIX,
    describe_errors,
    line_of,
    name_field,
    read_yaml,
)

_SUFFIXES = frozenset({".yaml", ".yml"})
_REFRESH = "run `frazil streams --refresh` on this machine: it asks Kafka and the catalog"
_EXCLUDE = (
    "exclude topics by `source.exclude_topics`, or change `topic_pattern` or `table.name` so that "
    "the names are valid and differ"
)
_PATTERN_KEY = b"topic_pattern"


@dataclass(frozen=True)
class StreamFile:
    """The streams of one file: one, several by a route, or one for each topic of a pattern."""

    path: Path
    streams: tuple[Stream, ...]
    refused: Mapping[str, StreamFileError] = field(default_factory=dict)
    """Name of a stream that a topic would have, or the file's own name → why there is none."""
    begun: frozenset[str] = frozenset()
    """The streams of a pattern whose tables record them."""
    has_pattern: bool = False

    @property
    def errors(self) -> tuple[StreamFileError, ...]:
        """Return each error once."""
        return tuple(dict.fromkeys(self.refused.values()))


Repeated: TypeAlias = Mapping[str, tuple[StreamFile, StreamFileError]]
"""Name of a stream that several files define → the file whose stream goes on, and the error."""


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
    files: list[StreamFile] = []
    broken: list[StreamFile] = []
    errors: list[StreamFileError] = []
    for path in list_stream_files(directory):
        try:
            files.append(load_file(path))
        except StreamFileError as error:
            errors.append(error)
            broken.append(StreamFile(path, ()))
    errors += [error for file in files for error in file.errors]
    repeated = _find_repeated_names([*files, *broken])
    errors += dict.fromkeys(error for _, error in repeated.values())
    errors += _find_shared_tables([(f.path, s) for f in files for s in f.streams])
    kept = [(s, f.path) for f in files for s in f.streams if _keeps(f, s.stream, repeated)]
    remember_files({s.stream: path for s, path in kept if s.stream not in repeated})
    return tuple(s for s, _ in kept), tuple(errors)


def _keeps(file: StreamFile, name: str, repeated: Repeated) -> bool:
    return name not in repeated or repeated[name][0] is file


def load_named_streams(
    directory: Path, name: str
) -> tuple[tuple[Stream, ...], tuple[StreamFileError, ...]]:
    """Load one stream, or all of a file with a topic pattern by the file's name.

    Raises:
        UnknownStreamError, StreamFileError: as in `load_stream`.
    """
    files = []
    for path in (path for path in list_pattern_files(directory) if path.stem == name):
        with contextlib.suppress(StreamFileError):  # `load_stream` raises it
            files += [file for file in [load_file(path)] if file.has_pattern]
    if not files:
        return (load_stream(directory, name),), ()
    streams, _ = load_readable_streams(directory)
    own = {stream.stream for file in files for stream in file.streams}
    errors = tuple(error for file in files for error in file.errors)
    return tuple(stream for stream in streams if stream.stream in own), errors


def list_stream_files(directory: Path) -> list[Path]:
    """List the stream files of a folder, `.yaml` and `.yml` in any case; none if it is missing."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.suffix.lower() in _SUFFIXES)


def list_pattern_files(directory: Path) -> list[Path]:
    """List the stream files with a topic pattern, broken ones too."""
    return [p for p in list_stream_files(directory) if _PATTERN_KEY in _read_bytes(p)]


def list_names_of(path: Path) -> list[str]:
    """List the names of a file's streams, quickly; its own where it, or a topic of it, is broken.

    Only a file that may contain a route is validated. Several DAG files call this at each parse.
    """
    text = _read_bytes(path)
    with contextlib.suppress(StreamFileError, ValueError):
        if _PATTERN_KEY in text:
            _, content = _read_mapping(path)
            rule = find_rule(path.stem, content)
            if rule is not None:
                found = _expand(rule)
                named = [each.stream for each in found.streams] if found else []
                return named if named and found and not found.refusals else [path.stem, *named]
        if b"route" in text:
            return [stream.stream for stream in load_streams_of(path)]
    return [path.stem]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


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


def load_stream(directory: Path, name: str) -> Stream:
    """Load one stream by its name.

    Raises:
        UnknownStreamError: there is no such stream; the error lists those that exist.
        StreamFileError: its file is invalid, several files define it, or its topic is refused.
    """
    paths = list_stream_files(directory)
    stems = {name, *(name[: found.start()] for found in re.finditer(f"(?={SEPARATOR})", name))}
    found: list[StreamFile] = []
    failed: dict[Path, StreamFileError] = {}
    refused: list[StreamFileError] = []
    for path in (path for path in paths if path.stem in stems):
        try:
            file = load_file(path, only=name)
        except StreamFileError as error:
            failed[path] = error
            continue
        refused += [file.refused[key] for key in (name, path.stem) if key in file.refused]
        found += [file] if file.streams else []
    found += [StreamFile(path, ()) for path in failed if path.stem == name]
    if len(found) > 1:
        found = [_choose_owner(name, found)[0]]
    elif found and found[0].streams:
        remember_files({name: found[0].path})
    if found and found[0].streams:
        return found[0].streams[0]
    errors = [failed[file.path] for file in found] or list(failed.values()) or refused
    raise errors[0] if errors else _unknown(directory, name, {path.stem for path in paths})


def _unknown(directory: Path, name: str, files: Collection[str]) -> FrazilError:
    """Return the error for a name that is no stream's."""
    patterns = [path.stem for path in list_pattern_files(directory)]
    known = ", ".join(sorted(files)) or "none"
    if name in patterns:
        return UnknownStreamError(
            f"{name} is a file with a topic pattern; each of its topics has a stream of its own",
            "`frazil streams` lists them; give the name of one",
        )
    create = f", or create {directory / name}.yaml" if re.fullmatch(STREAM_NAME, name) else ""
    new = "; if its topic is new, run `frazil streams --refresh`" if patterns else ""
    return UnknownStreamError(
        f"no stream {name!r} in {directory}; known: {known}",
        f"check the spelling{create}{new}",
    )


def load_streams_of(path: Path) -> tuple[Stream, ...]:
    """Load all streams of one file, the one named like the file first; without a route, one.

    Raises:
        StreamFileError: the file cannot be read, or is not a valid stream file.
    """
    return load_file(path).streams


def load_file(path: Path, only: str | None = None) -> StreamFile:
    """Load one file; with `only`, the stream of this name alone, if the file has it.

    A file with a pattern has the streams of the topics that are listed on this machine.

    Raises:
        StreamFileError: the file cannot be read, or is not a valid stream file.
    """
    root, content = _read_mapping(path)
    try:
        declared = Stream.model_validate(without_placeholders(content))
        rule = find_rule(path.stem, content)
        _require_own_name(path, declared)
        if rule is not None:
            line = line_of(root, ["source", "topic_pattern"])
            return _load_topics(f"{path}:{line}: source.topic_pattern", path, content, rule, only)
        derived = _derive(declared, content) or (declared,)
    except ValidationError as error:
        raise StreamFileError(describe_errors(path, root, error), FIX) from error
    except FieldError as error:
        line = line_of(root, list(error.path))
        raise StreamFileError(f"{path}:{line}: {name_field(error.path)}: {error}", FIX) from error
    except RecursionError:
        raise StreamFileError(f"{path}: a type is nested too deeply", FIX) from None
    return StreamFile(path, tuple(s for s in derived if only in {None, s.stream}))


def load_pattern(path: Path) -> tuple[Stream, TopicRule] | None:
    """Load what a file with a topic pattern declares for all topics; None if it has no pattern.

    The stream has the file's connections and options; it is none that could run.

    Raises:
        StreamFileError: the file cannot be read, or is not a valid stream file.
    """
    load_file(path, only="")
    _, content = _read_mapping(path)
    rule = find_rule(path.stem, content)
    return None if rule is None else (Stream.model_validate(without_placeholders(content)), rule)


def _read_mapping(path: Path) -> tuple[yaml.Node | None, dict[str, Any]]:
    """Return the root node and the content of a file, without options that no file may set.

    Raises:
        StreamFileError: it cannot be read, or is no mapping.
    """
    try:
        root, content = read_yaml(path)
    except (OSError, UnicodeDecodeError) as error:
        raise StreamFileError(f"{path}: cannot be read: {error}", FIX) from error
    except RecursionError:
        raise StreamFileError(f"{path}: nested too deeply", FIX) from None
    except yaml.YAMLError as error:
        raise StreamFileError(f"{path}: not valid YAML: {error}", FIX) from error
    if not isinstance(content, dict):
        raise StreamFileError(f"{path}: a stream file must be a mapping of keys", FIX)
    for section, key in (("route", "takes"), ("table", "state")):  # set when the file is loaded
        given = content.get(section)
        if isinstance(given, dict) and given.get(key) is not None:
            line = line_of(root, [section, key])
            raise StreamFileError(f"{path}:{line}: {section}.{key}: unknown key", FIX)
    return root, content


def _require_own_name(path: Path, stream: Stream) -> None:
    if stream.stream != path.stem:
        raise StreamFileError(
            f"{path}: stream: {stream.stream!r} must be the name of the file",
            f"rename the file to {stream.stream}{path.suffix} or the stream to {path.stem}",
        )


def _expand(rule: TopicRule) -> Expansion | None:
    """Return the streams of the topics that are listed on this machine; None without a list."""
    known = read_topics(rule.stream)
    return None if known is None else expand_topics(rule, known.tables)


def _load_topics(
    place: str, path: Path, content: dict[str, Any], rule: TopicRule, only: str | None
) -> StreamFile:
    """Return a stream for each topic; topics without one are errors, as is a missing list."""
    found = _expand(rule)
    if found is None or not (found.streams or found.refusals):
        listed = topic_list_path(rule.stream)
        facts = f"{listed} lists none" if found else f"there is no readable {listed}"
        error = StreamFileError(f"{place}: no topics are known: {facts}", _REFRESH)
        return StreamFile(path, (), {path.stem: error}, has_pattern=True)
    refused: dict[str, StreamFileError] = {}
    for each in found.refusals:
        error = StreamFileError(f"{place}: {each.reason}", _EXCLUDE)
        refused |= dict.fromkeys([path.stem, *each.topics, *each.streams], error)
    named = [each for each in found.streams if only in {None, each.stream}]
    streams = tuple(Stream.model_validate(fill_content(content, each)) for each in named)
    begun = frozenset(each.stream for each in named if each.has_begun)
    return StreamFile(path, streams, refused, begun, has_pattern=True)


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


def _find_repeated_names(files: Sequence[StreamFile]) -> Repeated:
    """Return the owner and an error for each name that two files define.

    A file without streams is broken; it would define the stream of its own name.
    """
    definers: dict[str, list[StreamFile]] = {}
    for file in files:
        names = [stream.stream for stream in file.streams]
        for name in names if names or file.refused else [file.path.stem]:
            definers.setdefault(name, []).append(file)
    return {name: _choose_owner(name, found) for name, found in definers.items() if len(found) > 1}


def _choose_owner(name: str, files: Sequence[StreamFile]) -> tuple[StreamFile, StreamFileError]:
    """Return the file whose stream of this name goes on, and the error that names all files.

    Adding a file never stops a running stream. So the owner is the topic whose table records the
    stream, or the file that this machine knows; otherwise a file before a topic of a pattern, the
    file of this name before a route, and `.yaml` before other suffixes.
    """
    known = read_known_files().get(name)
    owner = min(
        files,
        key=lambda file: (
            name not in file.begun,
            str(file.path) != known,
            file.has_pattern,
            file.path.stem != name,
            file.path.suffix != ".yaml",
            file.path,
        ),
    )
    paths = " and by ".join(str(file.path) for file in files)
    others = ", ".join(str(file.path) for file in files if file is not owner)
    topics = any(file.has_pattern for file in files)
    exclude = ", or exclude the topic by `source.exclude_topics`" if topics else ""
    return owner, StreamFileError(
        f"two streams are named {name!r}, by {paths}; only that of {owner.path} is used",
        f"rename or delete {others}, or rename the value in `route.tables`{exclude}",
    )


def _find_shared_tables(loaded: Sequence[tuple[Path, Stream]]) -> Iterator[StreamFileError]:
    """Yield an error for each table that several streams fill; its owner continues."""
    owners: dict[str, dict[str, Path]] = {}
    for path, stream in loaded:
        filled = stream.table.state or stream.table
        owners.setdefault(filled.name, {})[stream.stream] = path
    for table, found in owners.items():
        if len(found) > 1:
            names = " and ".join(map(repr, found))
            verb = "both fill" if len(found) == 2 else "fill"  # noqa: PLR2004 - a pair
            yield StreamFileError(
                f"streams {names} {verb} {table} ({', '.join(map(str, found.values()))}); only the "
                "stream recorded in the table's history continues",
                "change table.name in the other file, or delete it",
            )
