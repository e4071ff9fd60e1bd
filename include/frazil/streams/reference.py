"""The generator of docs/streams.md, the reference of stream files, from the models.

    python -m frazil.streams.reference > docs/streams.md

A test compares the file with the output, so that every option is documented.
"""

import sys
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from frazil.streams.column_types import METADATA_COLUMNS, PRIMITIVES
from frazil.streams.models import Stream
from frazil.streams.partitioning import ALLOWED_TYPES
from frazil.streams.sections import Section
from frazil.streams.table_properties import RULES

_INTRO = """\
<!-- Generated: `make docs` writes this file from include/frazil/streams/reference.py and the
models beside it. -->

# Stream files

A stream is defined by one YAML file in `include/streams/` (or in the folder `FRAZIL_STREAMS`). The
file has the name of the stream, with the suffix `.yaml` or `.yml`. `frazil streams` checks every
file and reports each error with file, line, field and reason; other streams keep running.

Adding a file never stops a running stream. If two files define one stream (`orders.yaml` and
`orders.yml`, or a file with the name of a stream of a route), the one that this machine knew before
stays in effect. A machine that knew neither prefers a file of the stream's name to a route, and
`.yaml` to other suffixes. The other file is refused with an error that names both.

The smallest stream file:

```yaml
stream: orders
owner: data-platform@example.org
source: {topic: orders}
value: {columns: {id: long!, placed_at: timestamptz, amount: "decimal(9,2)"}}
table: {name: shop.orders}
```

Unknown keys are errors. Keys marked (required) must be set where their section is used. Numbers are
decimal: what YAML 1.1 reads as another number (`030`, `0x1F`, `1:30`) is refused; quote a text that
looks like one.
"""

_NOTES = {
    "schema": "`auto` applies the change. `review` waits for a person, who may accept it, stop the "
    "stream, or continue with dead letters (`frazil review-schema --quarantine`). `fail` and "
    "`quarantine` refuse the change and stop the stream; with `other: quarantine` records whose "
    "registered schema the columns cannot hold are dead letters instead.",
    "order": "The default is `order: kafka`: the change with the largest offset in its partition.",
    "route": "The file then defines several streams: see [formats](formats.md).",
}
"""Section → further explanation."""

_PATTERNS = """\
## Many tables from one file

```yaml
stream: shop
owner: data-platform@example.org
source: {topic_pattern: 'shop\\.public\\.(?P<topic_table>.+)'}
value: {transform: flatten_debezium, columns: {id: long!, name: string}}
table: {name: "cdc.{topic_table}"}
```

Each topic whose whole name matches has a stream of its own: `shop.public.orders` is read by the
stream `shop__orders` into the table `cdc.orders`. Every command and DAG takes such a stream as if
it had a file; `frazil status`, `readiness`, `cost` and `timeline` take `shop` too, for all.
Topics whose names begin with `__` are Kafka's own and never match.

* **Placeholders** of `table.name` are the named groups of the pattern, in the syntax of Python's
  `re`, and `{topic}`. At least one is needed: several topics for one table are `topics`.
* **Names.** Each value in lower case, with `_` for each character other than a letter, digit or
  `_`. The stream is `<file>__<values of the named groups>`, joined by `_`; without named groups the
  value is the whole topic.
* **A topic without a stream.** A name that is not valid (a table's begins with a letter or `_`, a
  stream's has at most 63 characters) is an error of this topic; the others go on. If several topics
  would have one stream name or table, the one that the table's history records continues; if it
  records none, none of them begins. The error names all of them. `exclude_topics` leaves topics
  out.
* **The list of topics** is the file `FRAZIL_HOME/topics/shop.json`, so that DAG files are parsed
  without Kafka. `frazil streams --refresh` writes it, as do the DAG `watch` each minute and
  `frazil run` of a stream that is not in it. It has all topics of Kafka that match and all that a
  table records, so it may be deleted and is the same on every machine. Without it there are no DAGs
  of the file, and `frazil status` says so. With several machines refresh it on
  [each of them](airflow.md#topic-patterns).
* **A deleted topic** with a table keeps its stream, whose runs fail. To remove the stream add the
  topic to `exclude_topics`, or drop the table.
* **Columns** are those of the file for all topics; or, if it lists none, those of each topic's
  registered schema, for change events in Avro
  [those of `after`](cdc.md#columns-of-the-registered-schema). Frazil infers none from records.
  State tables without change events need columns in the file.
* Not with `topic_pattern`: `route`, `monitoring_group`, `start: latest` and start offsets.

With `source: {topic: …}` in a file of its own a topic is read twice, into two tables, unless
`exclude_topics` has it. If that file has the name and the table of the topic's stream, it continues
this stream. A changed pattern or `table.name` gives streams other names or tables,
which begin at `source.start`.
"""

_COLUMNS = """\
## Column types

`columns` maps names to Iceberg types. `!` after a type means required: a record without this value
is a bad record. Names that differ only in case are errors. Every table also has the column
`_kafka`, described in [formats](formats.md).

Names have letters, digits and `_`. Refused, in upper or lower case, are names that begin with
`_frazil_` and the metadata columns that Iceberg adds when it reads a table: {metadata}. Use `from`
to read a field with such a name, or with another one that a column cannot have:

```yaml
columns:
  order_id: {type: long!, from: "order-id"}
  placed_at: {type: timestamptz, from: "@timestamp"}
  city: {type: string, from: "address.city"}  # a field of this name, not a path
  lines: 'list<struct<sku: string! from "item-sku", qty: int>>'
```

`from` also tells apart fields that differ only in case. With `flatten_debezium` or `rest` Frazil
writes fields `_frazil_op`, `_frazil_unavailable`, `_frazil_source` and `_frazil_rest`, so that
`from` of these names is refused. A short form is one text, as in the struct:
`order_id: 'long! from "order-id"'`. A field is read into one column only. `from` is not part of the
table: with another `from` a column gets other values in later batches, and `frazil replay` reads
older records again. Python workers leave JSON with `from` inside a struct to Spark, which is
slower. `frazil status` lists fields without a column, odd names in backticks.

| type | decoded by Spark as |
|---|---|
"""

_NESTED = """\
| `decimal(p,s)` | `DECIMAL(p,s)`, precision 1 to 38 |
| `fixed(n)` | `BINARY` |
| `list<T>` | `ARRAY`; the elements of `list<T!>` must not be null |
| `map<string, T>` | `MAP` with string keys |
| `struct<a: T, b: T!>` | `STRUCT` |

[Types](types.md) lists which values each type takes.

Types can be nested: `list<struct<sku: string!, price: decimal(9,2)>>`. Iceberg's type `time` is not
supported, because Spark cannot write it; use `string`, or `long` for microseconds.
"""

_PROPERTIES = """\
## Table properties

The properties of Iceberg and PyIceberg, and what `properties` may set. A file with another value is
refused before anything is written. If another program sets a refused value in the table, the stream
halts if it could not write a batch; otherwise `frazil readiness` warns. For Parquet, a compression
level is possible with `zstd` only. Properties that are not listed are for other programs: Frazil
sets them on the table and ignores them. A listed name in another case (`Write.Format.Default`) is
refused, as is a property of a column (`….column.…`) that the table does not have: both would have
no effect.

| property | |
|---|---|
"""

_TRANSFORMS = """\
## Partition transforms

`partition_by` lists transforms of columns: `carrier`, `day(placed_at)`, `bucket(id, 16)`,
`truncate(city, 3)`, `month(shop.opened_at)`.

* `identity` does not support `fixed`: what Iceberg's Java library writes for such partitions, other
  libraries cannot read. Use `bucket`, or a column of type `binary`.
* `identity` does not support a field of a struct that may be null: Spark would read a null struct
  as one of nulls, and compaction would write it. Use another transform, or require the struct.
* `identity` of two uuids, and `identity` or `truncate` of two columns of one decimal type, are
  refused: Java and Python write such manifests differently.
* Where a value could be too long for the name of a folder (255 bytes; URL-encoded, a Chinese
  character has 9), paths of data files contain no partition values: Frazil sets
  `write.object-storage.enabled` and `write.object-storage.partitioned-paths=false`. This applies to
  `identity` of `string` and `binary`, and to `truncate` from about 20 characters on. Readers do not
  depend on paths.
* `truncate` rounds down. A number that would then be beyond its type, such as `-99.99` in
  `truncate(price, 30)` of a `decimal(4,2)` or `-2147483648` in `truncate(n, 10)` of an `int`,
  makes its record a dead letter: the number would wrap to the largest partition, which a
  filter such as `n < 0` skips.
* A partition has a name, such as `at_day` or `id_bucket`, that no other one and no other column may
  have, in any case of its letters.
* Prefer `bucket(uid, 16)` to `uid` for uuids. With `uid` as a partition, Spark finds rows by `=`
  and `IN`, but not by `<` or `>`, because Iceberg's Java library compares uuids as signed numbers;
  PyIceberg's own filters find none.

| transform | column types |
|---|---|
"""


def write_reference() -> str:
    """Return the text of docs/streams.md."""
    sections = "\n".join(_write_section("", Stream, "Top level"))
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
    metadata = ", ".join(f"`{name}`" for name in sorted(METADATA_COLUMNS))
    columns = _COLUMNS.replace("{metadata}", metadata) + types + _NESTED
    properties = "".join(
        f"| `{key}{'…' if key.endswith('.') else ''}` | {rule.text} |\n"
        for key, rule in RULES.items()
    )
    return "\n".join(
        [
            _INTRO,
            sections,
            named,
            _PATTERNS,
            columns,
            _TRANSFORMS + transforms,
            _PROPERTIES + properties,
        ]
    )


def _list_sections(model: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """Yield the sections of a model with their names in the file."""
    for name, field in model.model_fields.items():
        section = _section_of(field.annotation)
        if section is not None:
            yield field.alias or name, section


def _write_section(prefix: str, model: type[Section], title: str, note: str = "") -> Iterator[str]:
    """Yield one section: heading, description and a table of its options."""
    yield f"## {title}\n"
    yield f"{model.__doc__} {note}".rstrip() + "\n"
    yield "| option | values | default | meaning |"
    yield "|---|---|---|---|"
    yield from _write_options(prefix, model)
    yield ""


def _write_options(prefix: str, model: type[Section]) -> Iterator[str]:
    """Yield a table row for each option, with the options of nested sections."""
    for name, field in model.model_fields.items():
        key, section = prefix + (field.alias or name), _section_of(field.annotation)
        if section is not None:
            yield from _write_options(f"{key}.", section) if prefix else ()
        elif field.description:  # a field without a description is not an option of the file
            yield (
                f"| `{key}` | {_describe_values(field)} | {_describe_default(field)} | "
                f"{field.description} |"
            )


def _section_of(annotation: object) -> type[Section] | None:
    """Return the section type of a field, also of an optional one; None if it is no section."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def _describe_values(field: FieldInfo) -> str:
    """Describe the values of a field, with limits."""
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
    """Describe a type in words."""
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
    """Describe a type without arguments, or a small section by its keys."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return ", ".join(
            f"`{{{name}: …}}` ({field.description})"
            for name, field in annotation.model_fields.items()
        )
    words = {"str": "text", "int": "whole number", "float": "number"}
    return words[getattr(annotation, "__name__", "")]


def _describe_default(field: FieldInfo) -> str:
    """Describe the default of a field."""
    if field.is_required():
        return "(required)"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}):
        return "none"
    return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(write_reference())
