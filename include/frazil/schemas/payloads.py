"""Which registered schemas a batch is decoded with, and how each becomes the stream's columns."""

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from frazil.errors import SchemaMisfitError, UnknownSchemaIdError, UnknownSubjectError
from frazil.kafka.schema_registry import Registered, SchemaType
from frazil.schemas.avro import VALUE_FIELD, read_avro
from frazil.schemas.column_conversion import Fitted, fit_columns
from frazil.schemas.fast_path_layouts import lay_out_avro, lay_out_protobuf
from frazil.schemas.json_schema import read_json_schema
from frazil.schemas.protobuf import read_protobuf
from frazil.schemas.source_types import NoExactFormError, Record, Source, derive_columns, write_wire
from frazil.schemas.wire_format import PUT_ASIDE, Part, SchemaDecode, WireFormat
from frazil.streams.column_types import Column, parse_column
from frazil.streams.models import Stream
from frazil.streams.schema_changes import compare_columns, follow_columns
from frazil.streams.sections import BY_REGISTRY, VALUE_COLUMN, Key, Value

if TYPE_CHECKING:
    from frazil.kafka.schema_registry import SchemaRegistry

_FORMATS: Mapping[SchemaType, Literal["avro", "protobuf", "json_schema"]] = {
    "AVRO": "avro",
    "PROTOBUF": "protobuf",
    "JSON": "json_schema",
}


@dataclass(frozen=True)
class Payload:
    """One part of a stream's records that a registry's schemas decode."""

    stream: Stream
    part: Part
    waits: bool = True
    """Whether a schema that cannot be used may hold a batch up; letters are set aside already."""
    put_aside: tuple[str, ...] = ()
    """Columns in question: records become letters whose schema asks for one of them."""

    @property
    def options(self) -> Value | Key:
        """Give the part's section of the stream file."""
        return self.stream.value if self.part == "value" else self.stream.key

    @property
    def subject(self) -> str:
        """Name the subject: the stream file's, or the topic's own."""
        return self.options.subject or f"{self.stream.source.names[0]}-{self.part}"

    @property
    def has_schema_id(self) -> bool:
        """Return whether each payload starts with a magic byte and a schema id."""
        return self.options.convert == "by_schema_id"

    @property
    def is_flat(self) -> bool:
        """Say whether the fields of a payload are columns of their own."""
        return self.part == "value" and self.stream.value.is_flat

    @property
    def whole(self) -> str:
        """Name the column of a payload that is kept in one."""
        return VALUE_COLUMN if self.part == "value" else self.stream.key.column

    @property
    def columns(self) -> tuple[Column, ...]:
        """List the columns that the payload fills."""
        pairs = self.options.typed_columns
        return tuple(parse_column(name, text) for name, text in pairs.items())


def list_payloads(stream: Stream, put_aside: tuple[str, ...] = ()) -> tuple[Payload, ...]:
    """List the parts of a stream's records that need a registry; only values are put aside."""
    value = Payload(stream, "value", put_aside=put_aside)
    payloads = (value, Payload(stream, "key"))
    return tuple(p for p in payloads if p.options.convert in BY_REGISTRY)


def find_latest_schema(registry: "SchemaRegistry", payload: Payload) -> Registered:
    """Find the newest schema of the payload's subject.

    Raises:
        RegistryUnavailableError: the registry did not answer.
        UnknownSubjectError: the registry has no such subject.
    """
    found = registry.find_latest(payload.subject)
    if found is None:
        raise UnknownSubjectError(
            f"stream {payload.stream.stream}: the schema registry has no subject "
            f"{payload.subject}; nothing was read",
            f"register a schema there, or name another with `{payload.part}.subject` in "
            f"{payload.stream.stream}.yaml",
        )
    return found


def derive_payload_columns(payload: Payload, schema: Registered) -> tuple[Column, ...]:
    """Give the columns that a schema asks for.

    Raises:
        SchemaMisfitError: a field has no exact form in a column.
    """
    try:
        root = _read_root(payload, schema)
        return derive_columns(root, is_flat=payload.is_flat, whole=payload.whole)
    except NoExactFormError as error:
        raise _misfit(payload, schema, error) from error


def _read_root(payload: Payload, schema: Registered) -> Source:
    if schema.type == "PROTOBUF":
        return read_protobuf(schema, payload.options.message).root
    if schema.type == "JSON":
        return read_json_schema(schema)
    return read_avro(schema).root


def select_schemas(
    registry: "SchemaRegistry", payload: Payload, latest: int | None, remembered: Iterable[int]
) -> WireFormat:
    """Choose the schemas that a batch will probably meet: the subject's, and those of the last one.

    A schema that does not fit the columns is left out; it matters only if a record names it.

    Raises:
        RegistryUnavailableError: the registry did not answer.
        UnknownSchemaIdError, SchemaMisfitError: the planned newest schema cannot be used.
    """
    if latest is not None:
        schema = registry.find_schema(latest)
        if schema is None:
            raise _unknown(payload, latest, "which the plan names")
        return _write_format(payload, schema.type, [describe_schema(payload, schema)])
    schemas = {schema.id: schema for schema in registry.list_schemas(payload.subject)}
    for schema_id in remembered:
        found = schemas.get(schema_id) or registry.find_schema(schema_id)
        if found is not None:
            schemas[schema_id] = found
    newest = schemas[max(schemas)].type if schemas else "AVRO"
    decodes = []
    for schema in schemas.values():
        if schema.type == newest:
            try:
                decodes.append(describe_schema(payload, schema))
            except SchemaMisfitError:
                continue
    return _write_format(payload, newest, decodes)


def add_schemas(
    registry: "SchemaRegistry",
    payload: Payload,
    wire: WireFormat,
    ids: Iterable[int],
    where: str,
) -> WireFormat:
    """Add schemas that records of the batch name.

    Raises:
        RegistryUnavailableError: the registry did not answer.
        UnknownSchemaIdError: it does not know an id, and the stream file says wait.
        SchemaMisfitError: a schema has no exact form in the columns.
    """
    decodes = list(wire.schemas)
    kind = wire.format
    for schema_id in ids:
        schema = registry.find_schema(schema_id)
        if schema is None and payload.waits and payload.options.unknown_id == "wait":
            raise _unknown(payload, schema_id, where)
        if schema is None:
            text = f"the registry does not know schema {schema_id}"
            decodes.append(SchemaDecode(schema_id=schema_id, refusal=("unknown_schema_id", text)))
            continue
        if not any(decode.refusal is None for decode in decodes):
            kind = _FORMATS[schema.type]
        decodes.append(_require_decodable(payload, schema, kind))
    return WireFormat(format=kind, is_framed=wire.is_framed, schemas=tuple(decodes))


def _require_decodable(payload: Payload, schema: Registered, kind: str) -> SchemaDecode:
    """Write a decode; where the stream file says so, a schema that does not fit is refused."""
    try:
        _require_same_format(payload, schema, kind)
        return describe_schema(payload, schema)
    except SchemaMisfitError:
        if payload.waits and payload.stream.schema_policy.other != "quarantine":
            raise
    text = f"schema {schema.id} does not fit the columns"
    return SchemaDecode(schema_id=schema.id, refusal=("type_mismatch", text))


def _require_same_format(payload: Payload, schema: Registered, kind: str) -> None:
    if _FORMATS[schema.type] != kind:
        problem = NoExactFormError(f"is {_FORMATS[schema.type]}, the stream's others are {kind}")
        raise _misfit(payload, schema, problem)


def _write_format(payload: Payload, kind: SchemaType, decodes: list[SchemaDecode]) -> WireFormat:
    return WireFormat(
        format=_FORMATS[kind], is_framed=payload.has_schema_id, schemas=tuple(decodes)
    )


def describe_schema(payload: Payload, schema: Registered) -> SchemaDecode:
    """Write down how one schema's payloads become the columns, or why they wait for a person."""
    if payload.put_aside and (asked := _explain_put_aside(payload, schema)):
        return SchemaDecode(schema_id=schema.id, refusal=(PUT_ASIDE, f"schema {schema.id} {asked}"))
    writers: Mapping[SchemaType, Callable[[Payload, Registered], SchemaDecode]] = {
        "AVRO": _write_avro,
        "PROTOBUF": _write_protobuf,
        "JSON": _write_json,
    }
    try:
        return writers[schema.type](payload, schema)
    except NoExactFormError as error:
        raise _misfit(payload, schema, error) from error


def _explain_put_aside(payload: Payload, schema: Registered) -> str:
    """Say why a schema's records wait for a person; empty where they need not."""
    try:
        followed = follow_columns(payload.columns, derive_payload_columns(payload, schema))
    except SchemaMisfitError:
        columns = ", ".join(payload.put_aside)
        return f"has a field without an exact form: nobody can say whether it asks for {columns}"
    changes = compare_columns(payload.columns, followed, frozenset())
    if not any(change.path in payload.put_aside for change in changes):
        return ""
    return f"asks for {'; '.join(c.text for c in changes)}, about which a person decides"


def _write_avro(payload: Payload, schema: Registered) -> SchemaDecode:
    avro = read_avro(schema)
    fitted = _fit(payload, avro.root, f"_frazil_{payload.part}_{schema.id}.{VALUE_FIELD}")
    return SchemaDecode(
        schema_id=schema.id,
        reader=avro.reader,
        layout=lay_out_avro(avro, payload.columns) if payload.is_flat else "",
        values={name: f.value for name, f in fitted.items()},
        misfits={name: f.misfit for name, f in fitted.items() if f.misfit},
    )


def _write_json(_: Payload, schema: Registered) -> SchemaDecode:
    """Name the schema alone: JSON is decoded by the columns, whichever schema it was written by."""
    return SchemaDecode(schema_id=schema.id)


def _write_protobuf(payload: Payload, schema: Registered) -> SchemaDecode:
    """Describe the message to a Python worker, with no more fields than the columns take."""
    found = read_protobuf(schema, payload.options.message)
    fitted = _fit(payload, found.root, f"_frazil_{payload.part}_{schema.id}.{VALUE_FIELD}")
    names = {column.name for column in payload.columns}
    fields = tuple(f for f in found.root.fields if f[0] in names or not payload.is_flat)
    wire = pa.schema([pa.field(VALUE_FIELD, write_wire(Record(fields)))])
    return SchemaDecode(
        schema_id=schema.id,
        headers=tuple(index.hex() for index in found.indexes),
        reader=base64.b64encode(found.descriptor_set).decode(),
        message=found.message,
        layout=lay_out_protobuf(found, payload.columns) if payload.is_flat else "",
        wire_ipc=base64.b64encode(wire.serialize().to_pybytes()).decode(),
        values={name: f.value for name, f in fitted.items()},
        misfits={name: f.misfit for name, f in fitted.items() if f.misfit},
    )


def _fit(payload: Payload, root: Source, path: str) -> dict[str, Fitted]:
    return fit_columns(root, payload.columns, path, is_flat=payload.is_flat, whole=payload.whole)


def _misfit(payload: Payload, schema: Registered, error: NoExactFormError) -> SchemaMisfitError:
    name = payload.stream.stream
    return SchemaMisfitError(
        f"stream {name}: schema {schema.id} of {payload.part}s: {error}; nothing of the batch is "
        "visible",
        f"change `{payload.part}` in {name}.yaml and run again, or let such records become dead "
        "letters: `schema: {other: quarantine}`",
    )


def _unknown(payload: Payload, schema_id: int, where: str) -> UnknownSchemaIdError:
    name = payload.stream.stream
    return UnknownSchemaIdError(
        f"stream {name}: the schema registry does not know schema id {schema_id}, {where}; the "
        "batch waits, nothing of it is visible",
        f"register or restore the schema, then `frazil run {name}`; if such {payload.part}s are "
        f"no good, `{payload.part}: {{unknown_id: quarantine}}` in {name}.yaml",
    )
