"""Reading the YAML of a stream file, and errors that name file, line and field."""

import contextlib
import re
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from frazil.errors import StreamFileError
from frazil.streams.column_types import FieldError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_BOOLEAN, _INT, _FLOAT = f"{_TAG}bool", f"{_TAG}int", f"{_TAG}float"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)\Z")
"""Whole numbers that YAML 1.1 reads as they look; 010 is 8 to it, and 1:30 is 90."""
_UNREADABLE = object()
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
    if node is None or id(node) in seen:  # an empty file, or an alias of a node checked already
        return
    seen.add(id(node))
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name = (*path, key.value) if isinstance(key, yaml.ScalarNode) else path
        if key.tag == _BOOLEAN:
            yield f"{key.start_mark.line + 1}: {name_field(name)}: a boolean; put it in quotes"
        yield from _find_bad_nodes(loader, key, name, seen)
    problem = _explain_scalar(loader, node) if isinstance(node, yaml.ScalarNode) else None
    if problem is not None:
        yield f"{node.start_mark.line + 1}: {name_field(path)}: {problem}"
    yield from _find_repeated_keys(loader, node, path)
    for key, _, child in _children(node):
        yield from _find_bad_nodes(loader, child, (*path, key), seen)


def _explain_scalar(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str | None:
    """Return why a value is refused: YAML cannot read it, or reads another number; else None."""
    value = _construct(loader, node)
    if value is _UNREADABLE:
        kind = node.tag.removeprefix(_TAG)
        return f"not a valid {kind}; put it in quotes if it is text"
    is_odd = node.tag == _INT and not _DECIMAL.match(node.value)
    if is_odd or (node.tag == _FLOAT and ":" in node.value):
        return (
            f"YAML reads {node.value} as the number {value}; write a number in decimal, without "
            "zeros in front, or put it in quotes if it is text"
        )
    return None


def _find_repeated_keys(
    loader: yaml.SafeLoader, node: yaml.Node, path: tuple[int | str, ...]
) -> Iterator[str]:
    """Yield a problem for each repeated key, also in another spelling: 0 and 0.0 are one key."""
    lines: dict[object, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        value = _construct(loader, key)
        forms = {key.value} | ({value} if isinstance(value, Hashable) else set()) - {_UNREADABLE}
        first = next((lines[each] for each in forms if each in lines), None)
        if first is not None:
            yield f"{line}: {name_field((*path, key.value))}: duplicate key, first in line {first}"
        for each in forms:
            lines.setdefault(each, line)


def _construct(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> object:
    """Return a value as YAML reads it; `_UNREADABLE` if it cannot, as 2026-02-30 as a date."""
    with contextlib.suppress(yaml.YAMLError):  # told later, or no error at all, as for `<<`
        try:
            value: object = loader.construct_object(node)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
            return _UNREADABLE
        return value
    return node.value


def name_field(path: Iterable[int | str]) -> str:
    """Return a field's keys from the top level on, as `table.name`."""
    return ".".join(map(str, path))


def describe_errors(path: Path, root: yaml.Node | None, error: ValidationError) -> str:
    """Return a line for each validation error: `file:line: field: reason`."""
    return "\n".join(_describe(path, root, detail) for detail in _choose_form(error.errors()))


def _describe(path: Path, root: yaml.Node | None, detail: ErrorDetails) -> str:
    """Return one validation error as `file:line: field: reason`."""
    location = locate_field(detail)
    reason = detail["msg"].removeprefix("Value error, ")
    field = name_field(location) or "(the file)"
    reason = _REASONS.get(detail["type"], reason)
    given = detail.get("input")
    shown = f" (found {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{path}:{line_of(root, location)}: {field}: {reason}{shown}"


def locate_field(detail: ErrorDetails) -> list[int | str]:
    """Return the keys of the field of a validation error, from the top level on."""
    location = [part for part in detail["loc"] if not _is_label(part)]
    cause = detail.get("ctx", {}).get("error")
    return [*location, *(cause.path if isinstance(cause, FieldError) else ())]


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
        # A key is a text here, and in an error what YAML read, such as the partition 0.
        found = [pair for pair in _children(node) if str(pair[0]) == str(part)]
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
