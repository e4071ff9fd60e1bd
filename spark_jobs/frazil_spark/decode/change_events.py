"""Debezium's change events, and objects with fields without a column, as flat JSON objects.

This code travels to Spark's Python workers by value: it imports PyArrow and the standard library
only. Numbers and texts are copied as they were sent; only values that need a schema to be read are
written again, in the forms of docs/types.md. When the same bytes would become other rows, increase
`frazil.ingest.planning.FLATTEN_CODE`.
"""

import base64
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from frazil_spark.decode.avro_events import HEADER_BYTES, MALFORMED, AvroReader, MalformedAvroError
from frazil_spark.decode.json_parts import Json, Number, Part, split_list, split_object
from frazil_spark.decode.logical_values import (
    BYTES,
    LOGICAL,
    MisfitError,
    Node,
    Nodes,
    TextForBytesError,
    UnknownEncodingError,
    UnreadableValueError,
    drop_zone,
    fields_of,
    write_logical,
    write_readable,
)

FLAT = pa.struct(
    [
        pa.field("payload", pa.binary()),
        pa.field("skip", pa.string()),
        pa.field("fault", pa.string()),
        pa.field("detail", pa.string()),
    ]
)
SKIPS = ("tombstone", "message", "transaction")
"""Events that are no change of a row; they are counted and skipped."""
TRUNCATE = "truncate"
NO_ENVELOPE, NO_KEY = "not_an_envelope", "key_missing"
UNKNOWN_ENCODING = UnknownEncodingError.reason
OTHER_KEY = "other_key"
PLACEHOLDER = "__debezium_unavailable_value"
_BYTES = PLACEHOLDER.encode()
_NUMBERS = [str(byte) for byte in _BYTES]
_BASE64 = base64.b64encode(_BYTES).decode()
_UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""Java's `UUID.nameUUIDFromBytes` of the placeholder."""
_SCALARS = frozenset({PLACEHOLDER, _BASE64, _BYTES.hex()})
_PAIR = re.compile(rf'\s*\{{\s*"{PLACEHOLDER}"\s*:\s*"{PLACEHOLDER}"\s*\}}\s*')
"""The text of an hstore, as `hstore.handling.mode=json` sends it."""
_WITH_AFTER = frozenset("cru")
_MARKER = ("status", "id", "event_count", "data_collections")
_MARKERS = ({*_MARKER}, {*_MARKER, "ts_ms"})
"""The fields of a marker of the topic of transactions; old connectors send no time."""
_SOURCE = {
    "db": "db",
    "schema": "schema",
    "table": "table",
    "snapshot": "snapshot",
    "tx_id": "txId",
}
_LONG = re.compile(r"-?[0-9]{1,18}\Z")
_TIMES = frozenset({"date", "timestamp", "timestamptz"})
_AMBIGUOUS = _TIMES | {"decimal"}
"""Types of columns for which a value without a schema may mean several things."""
_BINARY = frozenset({"binary", "fixed"})
_AS_BASE64 = _BINARY | {"string"}
_MAX_RECURSION = 3_000
"""Enough for each text that Spark's parser takes, which has at most a thousand levels."""
_NESTED = frozenset({"array", "map", "struct", "record"})


@dataclass(frozen=True)
class Target:
    """A column or a part of one: the field that it reads, and its type.

    `kind` is the name of a primitive type, `list`, `map` or `struct`; `inner` has the element of a
    list, the value of a map, or the fields of a struct.
    """

    field: str
    kind: str
    inner: "tuple[Target, ...]" = ()
    column: str = ""


@dataclass(frozen=True)
class FlatSpec:
    """What a worker needs: the columns by field, and the options of a stream file's `value`.

    With a registry, `values` and `keys` have the readers of its schemas by the header of payloads.
    `key_fields` are those that each key must have; empty if any fields will do.
    """

    targets: Mapping[str, Target]
    has_events: bool
    has_rest: bool
    applies_truncate: bool
    has_text_decimals: bool
    prefix: str
    key_fields: frozenset[str] = frozenset()
    has_registry: bool = False
    values: Mapping[bytes, AvroReader] = field(default_factory=dict)
    keys: Mapping[bytes, AvroReader] = field(default_factory=dict)


class Flat(NamedTuple):
    """A flat object, or the reason why the record is skipped or becomes a dead letter."""

    payload: bytes | None
    skip: str | None = None
    fault: str | None = None
    detail: str | None = None


_ABSENT = Part("", None)
Fields: TypeAlias = dict[str, Part]


def read_values(spec: FlatSpec, batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
    """Flatten batches of keys and values."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _MAX_RECURSION))
    for keys, values in batches:
        pairs = zip(keys.to_pylist(), values.to_pylist(), strict=True)
        flatten = flatten_event if spec.has_events else flatten_object
        rows = [flatten(spec, key, value)._asdict() for key, value in pairs]
        yield pa.array(rows, FLAT)


def flatten_object(spec: FlatSpec, _: bytes | None, value: bytes | None) -> Flat:
    """Move the fields without a column to the rest; what is no object is returned as it is."""
    try:
        written = _write_fields(spec, split_object((value or b"").decode()), {})[0]
    except (ValueError, RecursionError):
        return Flat(value)
    return Flat(f"{{{','.join(written)}}}".encode())


def flatten_event(spec: FlatSpec, key: bytes | None, value: bytes | None) -> Flat:
    """Flatten one change event; what is no JSON object is returned as it is, for SQL to judge.

    With a registry, SQL judges the header of a value, and returns why its schema is not known.
    """
    header = (value or b"")[:HEADER_BYTES]
    if value is None or (spec.has_registry and header not in spec.values):
        return Flat(None)
    try:
        schema, envelope = _open(value, spec.values)
    except MalformedAvroError:
        return Flat(None, fault=MALFORMED, detail="the value does not have the form of its schema")
    except (ValueError, RecursionError):
        return Flat(value)
    try:
        return _classify(envelope, spec) or _flatten_change(spec, key, (schema, envelope))
    except (TypeError, AttributeError, KeyError):
        return Flat(None, fault=NO_ENVELOPE, detail="its schema is none of Kafka Connect")


def _classify(envelope: Fields, spec: FlatSpec) -> Flat | None:
    """Return why a record is no row; None if it is one."""
    op = envelope.get("op", _ABSENT).value
    if _is_marker(envelope):
        return Flat(None, skip="transaction")
    if op not in ("c", "r", "u", "d", "t", "m") or not isinstance(
        envelope.get("source", _ABSENT).value, dict
    ):
        return Flat(None, fault=NO_ENVELOPE, detail="no op and source of a change event")
    if op == "m":
        return Flat(None, skip="message")
    if op == "t" and not spec.applies_truncate:
        text = "the source table was truncated; value.truncate is refuse"
        return Flat(None, fault=TRUNCATE, detail=text)
    return None


def _is_marker(envelope: Fields) -> bool:
    """Return whether a record marks the begin or end of a transaction: all its fields must match.

    A field `status` alone proves nothing. Only an end marker has counts.
    """
    if envelope.keys() not in _MARKERS:
        return False
    status, name, count, tables = (envelope[each].value for each in _MARKER)
    if not isinstance(name, str) or isinstance(name, Number):
        return False
    if status == "BEGIN":
        return count is None and tables is None
    return status == "END" and isinstance(count, Number) and isinstance(tables, list | None)


def _flatten_change(spec: FlatSpec, key: bytes | None, event: tuple[Json, Fields]) -> Flat:
    """Write the row of a change: the columns of `after`, or those of the key of a delete."""
    schema, envelope = event
    op = str(envelope["op"].value)
    fields: Iterable[tuple[str, Part]] = ()
    nodes: Nodes = {}
    if op in _WITH_AFTER:
        after = envelope.get("after", _ABSENT)
        if not isinstance(after.value, dict):
            return Flat(None, fault=NO_ENVELOPE, detail=_describe_no_row(op, envelope))
        fields, nodes = split_object(after.text), _find_row_nodes(schema)
        if nodes is None:
            nodes = _find_key_nodes(key or b"", spec)
    if op == "d" or (spec.key_fields and op in _WITH_AFTER):
        try:
            key_schema, members = _open_key(key or b"", spec)
        except (ValueError, RecursionError):
            kind = "neither Avro of a known schema nor a" if spec.has_registry else "no"
            return Flat(None, fault=NO_KEY, detail=f"its key is {kind} JSON object")
        if spec.key_fields and spec.key_fields != members.keys():
            named = ", ".join(members)[:200].encode("ascii", "backslashreplace").decode()
            detail = f"its key has {named}, not {', '.join(sorted(spec.key_fields))}"
            return Flat(None, fault=OTHER_KEY, detail=detail)
        if op == "d":
            own = fields_of(key_schema)
            fields, nodes = members.items(), own if own is not None else _find_row_nodes(schema)
    written, unavailable, faults = _write_fields(spec, fields, nodes)
    if faults:
        detail = ", ".join(f"{name} {error.detail}" for name, error in faults)
        return Flat(None, fault=faults[0][1].reason, detail=detail)
    source = _write_source(envelope["source"].value)
    for name, text in (("_op", f'"{op}"'), ("_unavailable", unavailable), ("_source", source)):
        written.append(f'"{spec.prefix}{name}":{text}')
    return Flat(f"{{{','.join(written)}}}".encode())


def _find_row_nodes(schema: Json) -> Nodes:
    """Return the schemas of a row's fields, from the schema of an event; None without one."""
    parts = fields_of(schema) or {}
    return fields_of(parts.get("after") or parts.get("before"))


def _find_key_nodes(key: bytes, spec: FlatSpec) -> Nodes:
    """Return the schemas of a key's fields; None if it has none, or none that can be read.

    They replace schemas that the event lacks, so that a row and its delete have equal keys.
    """
    if b'"schema"' not in key:
        return None
    try:
        return fields_of(_open_key(key, spec)[0])
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError):
        return None


def _describe_no_row(op: str, envelope: Fields) -> str:
    """Return why a change has no row: MongoDB's connector sends its documents as texts."""
    if any(isinstance(envelope.get(name, _ABSENT).value, str) for name in ("before", "after")):
        return f"op {op} with its row as a text: events of MongoDB's connector cannot be read"
    return f"op {op} without after"


def _write_fields(
    spec: FlatSpec, fields: Iterable[tuple[str, Part]], nodes: Nodes
) -> tuple[list[str], str, list[tuple[str, UnreadableValueError]]]:
    """Write fields; return also the columns without an available value, and the unreadable ones."""
    written, unavailable, faults = [], [], []
    given = list(fields)
    for name, part in given:
        target = spec.targets.get(name)
        if target is None:
            if not spec.has_rest and not name.startswith(spec.prefix):
                written.append(f"{json.dumps(name)}:{part.text}")
        elif not spec.has_events:
            written.append(f"{json.dumps(name)}:{part.text}")
        elif _is_unavailable(part.value):
            unavailable.append(target.column)
        else:
            try:
                text = _convert(part, (nodes or {}).get(name), target, spec)
                written.append(f"{json.dumps(name)}:{text}")
            except UnreadableValueError as error:
                faults.append((target.column, error))
    rest = _collect_rest(given, spec.targets) if spec.has_rest else []
    if rest:
        written.append(f'"{spec.prefix}_rest":{json.dumps("{" + ",".join(rest) + "}")}')
    return written, json.dumps(unavailable), faults


def _collect_rest(fields: Iterable[tuple[str, Part]], targets: Mapping[str, Target]) -> list[str]:
    """Return the texts of fields without a column, also of those in structs."""
    found = []
    for name, part in fields:
        target = targets.get(name)
        if target is None:
            found.append(f"{json.dumps(name)}:{part.text}")
        elif target.kind == "struct" and isinstance(part.value, dict):
            named = {each.field: each for each in target.inner}
            if inner := _collect_rest(split_object(part.text), named):
                found.append(f"{json.dumps(name)}:{{{','.join(inner)}}}")
    return found


def _open(message: bytes, readers: Mapping[bytes, AvroReader]) -> tuple[Json, Fields]:
    """Return the schema of a message, None if it has none, and the fields of its payload.

    Raises:
        MalformedAvroError: it has a reader, which cannot read it.
        ValueError: it is no JSON object.
        RecursionError: it is nested too deeply.
    """
    reader = readers.get(message[:HEADER_BYTES])
    if reader is not None:
        return reader.node, dict(split_object(reader.read(message[HEADER_BYTES:])))
    fields = dict(split_object(message.decode()))
    if fields.keys() != {"schema", "payload"}:
        return None, fields
    return fields["schema"].value, dict(split_object(fields["payload"].text))


def _open_key(key: bytes, spec: FlatSpec) -> tuple[Json, Fields]:
    """Open a key as a message; one of JSON may have the header of a schema registry."""
    is_avro = key[:HEADER_BYTES] in spec.keys
    return _open(key if is_avro or key[:1] != b"\0" else key[HEADER_BYTES:], spec.keys)


def _is_unavailable(value: Json) -> bool:
    """Recognise a value that PostgreSQL did not send, by the placeholder for its type."""
    if isinstance(value, str):
        return value in _SCALARS or (PLACEHOLDER in value and _PAIR.fullmatch(value) is not None)
    if isinstance(value, list):
        return value == _NUMBERS or (
            len(value) == 1 and (value[0] == _UUID or _is_unavailable(value[0]))
        )
    return isinstance(value, dict) and value == {PLACEHOLDER: PLACEHOLDER}


def _write_source(source: Json) -> str:
    """Write the position of a change in its source; absent parts are null."""
    if not isinstance(source, dict):
        return "null"
    texts = {name: _to_text(source.get(field)) for name, field in _SOURCE.items()}
    written = [f'"{name}":{json.dumps(text)}' for name, text in texts.items()]
    for name in ("ts_ms", "lsn"):
        value = source.get(name)
        is_long = isinstance(value, Number) and _LONG.match(value)
        written.append(f'"{name}":{value if is_long else "null"}')
    return f"{{{','.join(written)}}}"


def _to_text(value: Json) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str) else None


def _convert(part: Part, node: Json, target: Target, spec: FlatSpec) -> str:
    """Return the JSON text of a field's value as its column's type is read.

    Raises:
        MisfitError: it has another form than its schema says, or none of the column's type.
        UnknownEncodingError: the message has no schema, and the value could mean several things.
    """
    known = node if isinstance(node, dict) else {}
    if part.value is None:
        return "null"
    if not known and _is_plain(known, target):
        return part.text
    if str(known.get("name")) in LOGICAL:
        return write_logical(part.value, known, target.kind) or part.text
    return _convert_inside(part, known, target, spec)


def _convert_inside(part: Part, node: Node, target: Target, spec: FlatSpec) -> str:
    """Convert the parts of a list, a map or a struct; keep other texts that have a schema."""
    inner = {each.field: each for each in target.inner}
    match target.kind, part.value:
        case "struct", dict():
            nodes = (fields_of(node) if node else None) or {}
            if all(_is_plain(nodes.get(name), inner[name]) for name in inner):
                return part.text
            # without a schema the other fields stay, to be reported as fields without a column
            pairs = [pair for pair in split_object(part.text) if pair[0] in inner or not node]
            texts = [
                _convert(each, nodes.get(name), inner[name], spec) if name in inner else each.text
                for name, each in pairs
            ]
        case "map", dict():
            values = node.get("values")
            if _is_plain(values, target.inner[0]):
                return part.text
            pairs = split_object(part.text)
            texts = [_convert(each, values, target.inner[0], spec) for _, each in pairs]
        case "list", list():
            items = node.get("items")
            if _is_plain(items, target.inner[0]):
                return part.text
            parts = split_list(part.text)
            texts = [_convert(each, items, target.inner[0], spec) for each in parts]
            return f"[{','.join(texts)}]"
        case _:
            kind = target.kind
            return _convert_known(part, node, kind) if node else _convert_unknown(part, kind, spec)
    named = (f"{json.dumps(name)}:{text}" for (name, _), text in zip(pairs, texts, strict=True))
    return f"{{{','.join(named)}}}"


def _is_plain(node: Json, target: Target) -> bool:
    """Return whether a value is read as it is sent, by its schema or without one."""
    if not isinstance(node, dict) or not node:
        return target.kind not in _AMBIGUOUS and all(_is_plain(None, i) for i in target.inner)
    if str(node.get("name")) in LOGICAL or node.get("type") in _NESTED:
        return False
    if node.get("type") in BYTES:
        return target.kind in _AS_BASE64
    return target.kind not in _BINARY


def _convert_known(part: Part, node: Node, kind: str) -> str:
    """Return the JSON text of a value whose schema has no logical type.

    Raises:
        TextForBytesError: the column holds bytes, but the schema's type is text.
        MisfitError: the schema's type is bytes, which the column cannot hold.
    """
    if kind == "string" and isinstance(part.value, list | dict):
        text = write_readable(part, node)
        return part.text if text == part.text else json.dumps(text)
    is_text = isinstance(part.value, str) and not isinstance(part.value, Number)
    if is_text and kind in _BINARY and node.get("type") not in BYTES:
        raise TextForBytesError
    if is_text and kind not in _AS_BASE64 and node.get("type") in BYTES:
        raise MisfitError  # digits in Base64 are no number
    return part.text


def _convert_unknown(part: Part, kind: str, spec: FlatSpec) -> str:
    """Return the JSON text of a value without a schema, if it has only one meaning.

    A day or time in UTC loses its zone where its column has none.

    Raises:
        UnknownEncodingError: the value could mean several things.
    """
    if isinstance(part.value, Number):
        if kind in _TIMES:
            raise UnknownEncodingError
    elif isinstance(part.value, str):
        if kind == "decimal" and not spec.has_text_decimals:
            raise UnknownEncodingError
        local = drop_zone(part.value, kind)
        return part.text if local == part.value else json.dumps(local)
    return part.text
