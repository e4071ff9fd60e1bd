"""Reading the YAML of a stream file, and errors that name file, line and field."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from frazil.errors import StreamFileError
from frazil.streams.column_types import FieldError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BOOLEAN = "tag:yaml.org,2002:bool"
_REASONS = {
    "extra_forbidden": "unknown key",
    "missing": "required, but not set",
    "model_type": "Input should be a mapping",
    "dict_type": "Input should be a mapping",
    "tuple_type": "Input should be a list",
    "too_short": "should have at least 1 item",
}
"""Reasons in the words of YAML, by the type of pydantic's error."""
FIX = "fix the stream file, then run `frazil streams`; docs/streams.md lists every option"


def read_yaml(path: Path) -> tuple[yaml.Node | None, object]:
    """Return the root node, which has line numbers, and the file's content."""
    loader = _LOADER(path.read_text(encoding="utf-8"))
    try:
        root = loader.get_single_node()
        # Before construct_document, which merges `<<` into the nodes as if keys were repeated.
        found = _find_bad_nodes(_LOADER(""), root, (), set())
        problems = "\n".join(f"{path}:{each}" for each in found)
        if problems:
            raise StreamFileError(problems, FIX)
        return root, loader.construct_document(root) if root else None
    finally:
        loader.dispose()


def _find_bad_nodes(
    loader: yaml.SafeLoader, node: yaml.Node | None, path: tuple[int | str, ...], seen: set[int]
) -> Iterator[str]:
    """Yield `line: field: problem` for duplicate keys, keys that are booleans, and bad values."""
    if id(node) in seen:  # an alias of a node that was checked already
        return
    seen.add(id(node))
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name = (*path, key.value) if isinstance(key, yaml.ScalarNode) else path
        if key.tag == _BOOLEAN:
            yield f"{key.start_mark.line + 1}: {name_field(name)}: a boolean; put it in quotes"
        yield from _find_bad_nodes(loader, key, name, seen)
    if isinstance(node, yaml.ScalarNode) and not _is_readable(loader, node):
        kind = f"{node.tag.rpartition(':')[2]}; put it in quotes if it is text"
        yield f"{node.start_mark.line + 1}: {name_field(path)}: not a valid {kind}"
    lines: dict[int | str, int] = {}
    for key, line, child in _children(node):
        if key in lines:
            place = f"{line}: {name_field((*path, key))}"
            yield f"{place}: duplicate key, first in line {lines[key]}"
        lines.setdefault(key, line)
        yield from _find_bad_nodes(loader, child, (*path, key), seen)


def _is_readable(loader: yaml.SafeLoader, node: yaml.Node) -> bool:
    """Return whether YAML can read a value as its type, as it cannot read 2026-02-30 as a date."""
    with contextlib.suppress(yaml.YAMLError):  # told later, or no error at all, as for `<<`
        try:
            loader.construct_object(node)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
            return False
    return True


def name_field(path: Iterable[int | str]) -> str:
    """Return a field's keys from the top level on, as `table.name`."""
    return ".".join(map(str, path))


def describe_errors(path: Path, root: yaml.Node | None, error: ValidationError) -> str:
    """Return a line for each validation error: `file:line: field: reason`."""
    return "\n".join(_describe(path, root, detail) for detail in _choose_form(error.errors()))


def _describe(path: Path, root: yaml.Node | None, detail: ErrorDetails) -> str:
    """Return one validation error as `file:line: field: reason`."""
    location = [part for part in detail["loc"] if not _is_label(part)]
    reason = detail["msg"].removeprefix("Value error, ")
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        location += cause.path
    field = name_field(location) or "(the file)"
    reason = _REASONS.get(detail["type"], reason)
    given = detail.get("input")
    shown = f" (found {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{path}:{line_of(root, location)}: {field}: {reason}{shown}"


def _choose_form(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out errors of the other form, where a value may be a word or a mapping."""
    words = [d for d in details if "".join(map(str, d["loc"][-1:])).startswith("literal[")]
    places = {d["loc"][:-1] for d in words if not isinstance(d.get("input"), dict)}
    for detail in words:
        detail["msg"] += " or a mapping"
    others = [d for d in details if d not in words and d["loc"][:-1] not in places]
    return [d for d in words if d["loc"][:-1] in places] + others


def _is_label(part: int | str) -> bool:
    """Return whether pydantic added this part of a location; it is not a key of the file."""
    return isinstance(part, str) and part.startswith(("literal[", "StartAt", "SequenceBy", "[key]"))


def line_of(node: yaml.Node | None, location: list[int | str]) -> int:
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
