"""The reference of stream files, written from the models themselves.

    python -m frazil.streams.reference > docs/streams.md

A test compares the file with what this prints, so that an option cannot stay undocumented.
"""

import sys
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from frazil.streams.column_types import PRIMITIVES
from frazil.streams.models import Stream
from frazil.streams.partitioning import ALLOWED_TYPES
from frazil.streams.sections import Section

_INTRO = """\
<!-- Generated: `make docs` writes this file from include/frazil/streams/models.py. -->

# Stream files

One YAML file in `include/streams/` (or the folder that `FRAZIL_STREAMS` names) makes a stream: a
topic that becomes a table. The file is named like its stream. `frazil streams` checks every file
and names file, line, field and reason of what is wrong; a broken file stops no other stream.

The smallest one:

```yaml
stream: orders
owner: data-platform@example.org
source: {topic: orders}
value: {columns: {id: long!, placed_at: timestamptz, amount: "decimal(9,2)"}}
table: {name: shop.orders}
```

Unknown keys are refused. A key without a default must be there.
"""

_NOTES = {
    "schema": "Asked when the stream file has other columns or partitions than the table.",
    "route": "The file then stands for several streams: see [formats](formats.md).",
}
"""Section → what a reader must know beyond the options."""

_COLUMNS = """\
## Column types

`columns` maps a name to a type of Iceberg. `!` after a type means required: a record without a
value there is a bad record. Names that differ only in case are refused. Every table also gets the
column `_kafka`; [formats](formats.md) says what is in it.

| type | decoded by Spark as |
|---|---|
"""

_NESTED = """\
| `decimal(p,s)` | `DECIMAL(p,s)`, precision 1 to 38 |
| `fixed(n)` | `BINARY` |
| `list<T>` | a list; `list<T!>` has no missing elements |
| `map<string, T>` | a map with text as keys |
| `struct<a: T, b: T!>` | a struct |

Types nest: `list<struct<sku: string!, price: decimal(9,2)>>`. Of Iceberg's types one is missing,
and is refused by name: `time`, which Spark cannot write; use a `string`, or a `long` of
microseconds.
"""

_TRANSFORMS = """\
## Partition transforms

`partition_by` lists transforms of columns: `carrier`, `day(placed_at)`, `bucket(id, 16)`,
`truncate(city, 3)`, `month(shop.opened_at)`.

| transform | fits |
|---|---|
"""


def write_reference() -> str:
    """Write docs/streams.md."""
    sections = "\n".join(_write_section("", Stream, "The file itself"))
    named = "\n".join(
        "\n".join(_write_section(f"{name}.", model, f"`{name}`", _NOTES.get(name, "")))
        for name, model in _list_sections(Stream)
    )
    types = "".join(f"| `{name}` | `{spark}` |\n" for name, spark in PRIMITIVES.items())
    transforms = "".join(
        f"| `{name}{'(column, n)' if name in {'bucket', 'truncate'} else '(column)'}` | "
        f"{', '.join(sorted(fitting))} |\n"
        for name, fitting in ALLOWED_TYPES.items()
    )
    return "\n".join(
        [_INTRO, sections, named, _COLUMNS + types + _NESTED, _TRANSFORMS + transforms]
    )


def _list_sections(model: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """Yield the sections of a model by the name that the file uses."""
    for name, field in model.model_fields.items():
        section = _section_of(field.annotation)
        if section is not None:
            yield field.alias or name, section


def _write_section(prefix: str, model: type[Section], title: str, note: str = "") -> Iterator[str]:
    """Write one section as a heading, its sentence and a table of its options."""
    yield f"## {title}\n"
    yield f"{model.__doc__} {note}".rstrip() + "\n"
    yield "| option | values | default | meaning |"
    yield "|---|---|---|---|"
    yield from _write_options(prefix, model)
    yield ""


def _write_options(prefix: str, model: type[Section]) -> Iterator[str]:
    """Write a row for each option; a section below the file's own has its options here."""
    for name, field in model.model_fields.items():
        key, section = prefix + (field.alias or name), _section_of(field.annotation)
        if section is not None:
            yield from _write_options(f"{key}.", section) if prefix else ()
        elif field.description:  # what has none is no option: loading sets it
            yield (
                f"| `{key}` | {_describe_values(field)} | {_describe_default(field)} | "
                f"{field.description} |"
            )


def _section_of(annotation: object) -> type[Section] | None:
    """Give the section that a field holds, also one that may be left out."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def _describe_values(field: FieldInfo) -> str:
    """Write what a field takes, with its limits."""
    limits = []
    for rule in field.metadata:
        if isinstance(rule, Ge):
            limits.append(f"≥ {rule.ge}")
        elif isinstance(rule, Le):
            limits.append(f"≤ {rule.le}")
        elif getattr(rule, "pattern", None):
            limits.append(f"`{rule.pattern}`")
    return ", ".join([_describe_type(field.annotation), *limits])


def _describe_type(annotation: object) -> str:
    """Write a type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    kept = arguments[:1] if origin is Annotated else arguments
    parts = [_describe_type(part) for part in kept if part not in (NoneType, Ellipsis)]
    if origin in {Union, UnionType, Annotated}:
        return ", ".join(parts)
    if origin is tuple:
        return f"list of {parts[0]}"
    if origin is dict:
        return " → ".join(parts)
    return _describe_plain(annotation)


def _describe_plain(annotation: object) -> str:
    """Write a type without arguments, or a small section as its keys."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return ", ".join(
            f"`{{{name}: …}}` ({field.description})"
            for name, field in annotation.model_fields.items()
        )
    words = {"str": "text", "int": "whole number", "float": "number"}
    return words[getattr(annotation, "__name__", "")]


def _describe_default(field: FieldInfo) -> str:
    """Write the default as the file would say it."""
    if field.is_required():
        return "(required)"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}):
        return "none"
    return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(write_reference())
