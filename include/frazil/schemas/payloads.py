"""Choose the registered schemas that decode a batch, and describe how each becomes columns."""

import base64
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from frazil.errors import SchemaMisfitError, UnknownSchemaIdError, UnknownSubjectError
from frazil.kafka.schema_registry import Registered, SchemaType
from frazil.schemas.avro import VALUE_FIELD, parse_avro, read_avro, read_event_row
from frazil.schemas.column_conversion import convert_columns
from frazil.schemas.fast_path_layouts import lay_out_avro, lay_out_protobuf
from frazil.schemas.json_schema import read_json_schema
from frazil.schemas.protobuf import read_protobuf, replace_enums
from frazil.schemas.source_types import (
    NotConvertibleError,
    Record,
    Source,
    UnreadableSchemaError,
    derive_columns,
    drop_unfit_names,
    to_arrow_type,
)
from frazil.schemas.wire_format import (
    MAX_UNNAMED,
    UNDECIDED,
    UNREADABLE,
    Part,
    SchemaDecode,
    WireFormat,
)
from frazil.streams.column_types import Column, FieldError, StructType, parse_column, quote_name
from frazil.streams.models import Stream
from frazil.streams.partitioning import list_own_names
from frazil.streams.routes import SEPARATOR
from frazil.streams.schema_changes import SchemaChange, compare_columns, follow_columns
from frazil.streams.sections import BY_REGISTRY, VALUE_COLUMN, Key, Value
from frazil.streams.state_sections import STATE_COLUMNS

if TYPE_CHECKING:
    from frazil.kafka.schema_registry import SchemaRegistry

_FORMATS: Mapping[SchemaType, Literal["avro", "protobuf", "json_schema"]] = {
    "AVRO": "avro",
    "PROTOBUF": "protobuf",
    "JSON": "json_schema",
}


_MAX_DETAIL = 300
"""Letters of a dead letter's detail, where a compiler's message is in it."""


@dataclass(frozen=True)
class Payload:
    """The value or the key of a stream's records, where registered schemas decode it."""

    stream: Stream
    part: Part
    stops_batch: bool = True
    """Whether an unusable schema may stop the batch; not when dead letters are read again."""
    quarantined_columns: tuple[str, ...] = ()
    """Columns with a pending change: records whose schema requires it become dead letters."""
    follows_schemas: bool = False
    """Whether the columns follow registered schemas: each field of a schema needs a column."""

    @property
    def is_event(self) -> bool:
        """Return whether it is part of a change event, whose key is read as the value is."""
        return self.stream.value.change_events is not None and self.stream.key.convert is None

    @property
    def options(self) -> Value | Key:
        """Return the section of the stream file that says how the part is read."""
        is_value = self.part == "value" or self.is_event
        return self.stream.value if is_value else self.stream.key

    @property
    def subject(self) -> str:
        """Return the subject of the stream file, or else the topic's."""
        own = self.options.subject
        if own and self.is_event and self.part == "key":
            own = f"{own.removesuffix('-value')}-key"
        return own or f"{self.stream.source.names[0]}-{self.part}"

    @property
    def has_schema_id(self) -> bool:
        """Return whether each payload starts with a magic byte and a schema id."""
        return self.options.convert == "by_schema_id"

    @property
    def is_flat(self) -> bool:
        """Return whether each field of a payload has a column of its own."""
        if self.part == "key":
            return bool(self.stream.key.columns)
        return self.stream.value.is_flat

    @property
    def single_column(self) -> str:
        """Return the name of the column of a payload that has only one."""
        return VALUE_COLUMN if self.part == "value" else self.stream.key.column

    @property
    def added_names(self) -> frozenset[str]:
        """Return the names, in lower case, of columns that Frazil adds to those of a value."""
        stream = self.stream
        if not self.is_event or self.part == "key":
            return frozenset()
        added = {*stream.value.typed_columns} - {*stream.value.columns}
        return frozenset(map(str.lower, added | (STATE_COLUMNS if stream.table.state else set())))

    @property
    def taken_names(self) -> frozenset[str]:
        """Return the names, in lower case, that no new column of a value can have.

        Other columns of the table have them, or partition fields.
        """
        if self.part == "key":
            return frozenset()
        layouts = (each for each in (self.stream.table, self.stream.table.state) if each)
        partitions = (list_own_names(layout.partition_by) for layout in layouts)
        of_key = map(str.lower, self.stream.key.typed_columns)
        return self.added_names.union(of_key, *partitions)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns that the payload fills."""
        pairs = self.options.typed_columns
        return tuple(parse_column(name, text) for name, text in pairs.items())


def list_payloads(stream: Stream, quarantined: tuple[str, ...] = ()) -> tuple[Payload, ...]:
    """List the parts that registered schemas decode; quarantined columns are those of values."""
    value = Payload(stream, "value", quarantined_columns=quarantined)
    payloads = (value, Payload(stream, "key"))
    return tuple(p for p in payloads if p.options.convert in BY_REGISTRY)


def find_latest_schema(registry: "SchemaRegistry", payload: Payload) -> Registered:
    """Return the newest schema of the payload's subject.

    Raises:
        RegistryUnavailableError: the registry did not answer.
        UnknownSubjectError: the registry has no such subject.
    """
    found = registry.find_latest(payload.subject)
    if found is None:
        raise UnknownSubjectError(
            f"stream {payload.stream.stream}: the schema registry has no subject "
            f"{payload.subject}; nothing was read",
            f"register a schema there, or set `{payload.part}.subject` in "
            f"{payload.stream.stream}.yaml to another subject",
        )
    return found


def derive_payload_columns(
    payload: Payload, schema: Registered, *, is_new: bool = False
) -> tuple[Column, ...]:
    """Return the columns for a schema.

    A field with a name that no column can have, or that is taken, is refused if the stream
    `is_new`. Later it is left out, so that it neither stops the stream nor hides other fields;
    status shows it.

    Raises:
        SchemaMisfitError: no column can hold a field.
    """
    added = payload.added_names
    taken = added if is_new else payload.taken_names  # the file is validated with new columns
    try:
        root = _read_root(payload, schema, is_new=is_new)
        if not is_new:
            root, _ = drop_unfit_names(root, is_flat=payload.is_flat)
        found = derive_columns(root, is_flat=payload.is_flat, single_column=payload.single_column)
        if is_new:
            _validate_names(found, added)
    except NotConvertibleError as error:
        raise _mismatch_error(payload, schema, error) from error
    ids = payload.stream.table.id_columns
    own = (column for column in found if column.name.lower() not in taken)
    return tuple(replace(column, required=column.name in ids) for column in own)


def _validate_names(columns: Iterable[Column], added: Collection[str]) -> None:
    for column in columns:
        if column.name.lower() in added:
            message = f"{column.name} is the name of a column that Frazil adds"
            raise NotConvertibleError(message)


def list_unfit_fields(payload: Payload, schema: Registered) -> tuple[str, ...]:
    """List the fields of a schema that are left out where the columns follow it.

    Raises:
        NotConvertibleError: it cannot be read.
    """
    root, unfit = drop_unfit_names(_read_root(payload, schema), is_flat=payload.is_flat)
    fields = root.fields if payload.is_flat and isinstance(root, Record) else ()
    names = [name for name, _ in fields]
    taken = payload.taken_names
    return (*unfit, *(quote_name(n) for n in names if n.lower() in taken))


def follow_schema(
    payload: Payload, columns: tuple[Column, ...], schema: Registered
) -> tuple[Column, ...]:
    """Return the columns with the additions, promotions and relaxations of a schema.

    Raises:
        SchemaMisfitError: no column can hold a field, or a name differs from a column's only in
            case.
    """
    derived = derive_payload_columns(payload, schema)
    try:
        return follow_columns(columns, derived)
    except FieldError as error:
        problem = NotConvertibleError(f"beside the table's columns, {error}")
        raise _mismatch_error(payload, schema, problem) from error


def list_required_changes(payload: Payload, schema: Registered) -> tuple[SchemaChange, ...]:
    """List the changes of the payload's columns that a schema requires.

    Raises:
        SchemaMisfitError: no column can hold a field.
    """
    columns = payload.columns
    return compare_columns(columns, follow_schema(payload, columns, schema), frozenset())


def _require_known_type(schema: Registered) -> None:
    """Require a type that Frazil reads; plug-ins of a registry may add others."""
    if schema.type not in _FORMATS:
        raise UnreadableSchemaError(f"is of the type {schema.type}")


def _read_root(payload: Payload, schema: Registered, *, is_new: bool = False) -> Source:
    _require_known_type(schema)
    if payload.is_event:
        _require_avro(schema)
        row = read_event_row(schema)
        if row is None and is_new:
            message = "is not a schema of change events: it has no record `after`"
            raise NotConvertibleError(message)
        return row or Record(())  # records of this schema become no rows
    if schema.type == "PROTOBUF":
        return read_protobuf(schema, payload.options.message).root
    if schema.type == "JSON":
        return read_json_schema(schema)
    return read_avro(schema).root


def select_schemas(
    registry: "SchemaRegistry", payload: Payload, latest: int | None, remembered: Iterable[int]
) -> WireFormat:
    """Choose the schemas that records of a batch probably have: the subject's and `remembered`.

    With `latest`, the planned id for values without one, that schema alone. Schemas that are not
    convertible are omitted; `add_schemas` reports them if a record has one.

    Raises:
        RegistryUnavailableError: the registry did not answer.
        UnknownSchemaIdError, SchemaMisfitError: the planned schema cannot be used.
    """
    if latest is not None:
        schema = registry.find_schema(latest, payload.subject)
        if schema is None:
            raise _unknown(payload, latest, "which the plan requires")
        kind, decodes = schema.type, [describe_schema(payload, schema)]
    else:
        own = {schema.id: schema for schema in registry.list_schemas(payload.subject)}
        schemas = dict(own)
        for schema_id in remembered:
            found = schemas.get(schema_id) or registry.find_schema(schema_id, payload.subject)
            if found is not None:
                schemas[schema_id] = found
        # The ids of earlier batches are those of values and keys, which may differ in format.
        known = {n: s for n, s in (own or schemas).items() if s.type in _FORMATS}
        kind, decodes = known[max(known)].type if known else "AVRO", []
        for schema in schemas.values():
            if schema.type == kind:
                with suppress(SchemaMisfitError):
                    decodes.append(describe_schema(payload, schema))
    return WireFormat(
        format=_FORMATS[kind], has_schema_id=payload.has_schema_id, schemas=tuple(decodes)
    )


def add_schemas(
    registry: "SchemaRegistry",
    payload: Payload,
    wire: WireFormat,
    ids: Iterable[int],
    where: str,
) -> WireFormat:
    """Add the schemas with the ids that records of the batch carry.

    Raises:
        RegistryUnavailableError: the registry did not answer.
        UnknownSchemaIdError: the registry has no such id, and `unknown_id` is `wait`.
        SchemaMisfitError: the columns cannot hold a schema's values exactly.
    """
    decodes = list(wire.schemas)
    kind = wire.format
    for schema_id in ids:
        schema = registry.find_schema(schema_id, payload.subject)
        if schema is None and payload.stops_batch and payload.options.unknown_id == "wait":
            raise _unknown(payload, schema_id, where)
        if schema is None:
            text = f"the registry has no schema {schema_id}"
            decodes.append(SchemaDecode(schema_id=schema_id, refusal=("unknown_schema_id", text)))
            continue
        if not any(decode.refusal is None for decode in decodes):
            kind = _FORMATS.get(schema.type, kind)
        decodes.append(_require_decodable(payload, schema, kind))
    return WireFormat(format=kind, has_schema_id=wire.has_schema_id, schemas=tuple(decodes))


def _require_decodable(payload: Payload, schema: Registered, kind: str) -> SchemaDecode:
    """Describe a schema; if it is not convertible, refuse its records or stop the batch.

    One that cannot be read never stops the batch: no change of the columns would help.
    """
    try:
        return describe_schema(payload, schema, kind)
    except SchemaMisfitError as error:
        if isinstance(error.__cause__, UnreadableSchemaError):
            text = f"schema {schema.id} {error.__cause__}"[:_MAX_DETAIL]
            return SchemaDecode(schema_id=schema.id, refusal=(UNREADABLE, text))
        if payload.stops_batch and payload.stream.schema_policy.other != "quarantine":
            raise
    text = f"schema {schema.id} does not match the columns"
    return SchemaDecode(schema_id=schema.id, refusal=("type_mismatch", text))


def describe_schema(payload: Payload, schema: Registered, kind: str | None = None) -> SchemaDecode:
    """Describe how one schema's payloads become the columns, or why they are quarantined.

    Raises:
        SchemaMisfitError: its format is not `kind`, or the columns cannot hold its values exactly,
            or, where they follow schemas, no column can hold one of its fields.
    """
    try:
        _require_known_type(schema)
    except UnreadableSchemaError as error:
        raise _mismatch_error(payload, schema, error) from error
    if kind not in {None, _FORMATS[schema.type]}:
        problem = NotConvertibleError(f"is {_FORMATS[schema.type]}, but the others are {kind}")
        raise _mismatch_error(payload, schema, problem)
    if payload.quarantined_columns and (reason := _explain_quarantine(payload, schema)):
        refusal = (UNDECIDED, f"schema {schema.id} {reason}")
        return SchemaDecode(schema_id=schema.id, refusal=refusal)
    if payload.follows_schemas:
        follow_schema(payload, payload.columns, schema)  # fields without a column would be lost
    try:
        decode = _describe_decode(payload, schema)
        unfit = list_unfit_fields(payload, schema) if payload.follows_schemas else ()
    except NotConvertibleError as error:
        raise _mismatch_error(payload, schema, error) from error
    return decode.model_copy(update={"unnamed_fields": unfit[:MAX_UNNAMED]})


def _describe_decode(payload: Payload, schema: Registered) -> SchemaDecode:
    if payload.is_event:
        if payload.follows_schemas:
            _require_same_types(payload, schema)
        return _describe_event(schema)
    if schema.type == "AVRO":
        return _describe_avro(payload, schema)
    if schema.type == "PROTOBUF":
        return _describe_protobuf(payload, schema)
    return SchemaDecode(schema_id=schema.id)  # JSON is decoded by the columns, whatever its schema


def _describe_event(schema: Registered) -> SchemaDecode:
    """Describe a schema of change events, or of their keys, for a Python worker."""
    _require_avro(schema)
    return SchemaDecode(schema_id=schema.id, reader=parse_avro(schema))


def _require_avro(schema: Registered) -> None:
    if schema.type != "AVRO":
        message = f"is {schema.type}; change events of a registry are read from Avro"
        raise NotConvertibleError(message)


def _require_same_types(payload: Payload, schema: Registered) -> None:
    """Require that the columns of change events can hold a schema's types; text holds them all."""
    derived = derive_payload_columns(payload, schema)
    for change in compare_columns(payload.columns, derived, frozenset()):
        if change.kind == "change_type" and change.before != "string":
            message = f"{change.path} is {change.after}, and its column {change.before}"
            raise NotConvertibleError(message)


def _explain_quarantine(payload: Payload, schema: Registered) -> str:
    """Explain why a schema's records are quarantined; empty if they are not."""
    try:
        changes = list_required_changes(payload, schema)
    except SchemaMisfitError:
        columns = ", ".join(payload.quarantined_columns)
        return f"has a field that no column can hold, so its use of {columns} is unknown"
    if not any(change.path in payload.quarantined_columns for change in changes):
        return ""
    return f"requires {'; '.join(c.text for c in changes)}, which needs a decision"


def _describe_avro(payload: Payload, schema: Registered) -> SchemaDecode:
    named = {column.field: column.type for column in payload.columns}
    single = named.get(payload.single_column)
    avro = read_avro(schema, StructType(payload.columns) if payload.is_flat else single)
    if payload.is_flat and not isinstance(avro.root, Record):
        avro = read_avro(schema, single)
    decode = SchemaDecode(
        schema_id=schema.id,
        reader=avro.reader,
        layout=lay_out_avro(avro, payload.columns) if payload.is_flat else "",
    )
    return _with_conversions(payload, decode, avro.root)


def _describe_protobuf(payload: Payload, schema: Registered) -> SchemaDecode:
    """Describe the message for a Python worker, with only the fields that columns need."""
    found = read_protobuf(schema, payload.options.message)
    names = {column.field for column in payload.columns}
    named = zip(found.root.fields, found.root.decoded_names, strict=True)
    kept = [each for each in named if each[0][0] in names or not payload.is_flat]
    used = Record(tuple(field for field, _ in kept), tuple(decoded for _, decoded in kept))
    arrow = pa.schema([pa.field(VALUE_FIELD, to_arrow_type(used))])
    decode = SchemaDecode(
        schema_id=schema.id,
        headers=tuple(index.hex() for index in found.indexes),
        reader=base64.b64encode(replace_enums(found.descriptor_set)).decode(),
        message=found.message,
        layout=lay_out_protobuf(found, payload.columns) if payload.is_flat else "",
        arrow_schema=base64.b64encode(arrow.serialize().to_pybytes()).decode(),
    )
    return _with_conversions(payload, decode, found.root)


def _with_conversions(payload: Payload, decode: SchemaDecode, root: Source) -> SchemaDecode:
    """Add the SQL of each column.

    Raises:
        NotConvertibleError: the columns cannot hold the schema's values exactly.
    """
    conversions = convert_columns(
        root,
        payload.columns,
        f"_frazil_{payload.part}_{decode.schema_id}.{VALUE_FIELD}",
        is_flat=payload.is_flat,
        single_column=payload.single_column,
    )
    values = {name: c.value for name, c in conversions.items()}
    mismatches = {name: c.mismatch for name, c in conversions.items() if c.mismatch}
    return decode.model_copy(update={"values": values, "mismatches": mismatches})


def _mismatch_error(
    payload: Payload, schema: Registered, error: NotConvertibleError
) -> SchemaMisfitError:
    name, part = payload.stream.stream, payload.part
    step = (
        f"register a schema that can be read under {payload.subject}, then `frazil run {name}`"
        if isinstance(error, UnreadableSchemaError)
        else f"change `{part}` in {name}.yaml, where its `columns` can be listed, and run again"
    )
    if payload.has_schema_id and not isinstance(error, UnreadableSchemaError):
        step += "; or set `schema: {other: quarantine}` there to make such records dead letters"
    if not isinstance(error, UnreadableSchemaError):
        step += suggest_own_file(payload.stream)
    return SchemaMisfitError(
        f"stream {name}: schema {schema.id} of its {part}s (subject {payload.subject}): {error}; "
        "nothing of the batch is visible",
        step,
    )


def suggest_own_file(stream: Stream) -> str:
    """Return what else a person can do about a stream of a topic pattern; empty for others."""
    is_derived = SEPARATOR in stream.stream and stream.route is None
    return (
        "; or, with `topic_pattern`, add the topic to `source.exclude_topics`, and perhaps give it "
        f"the file {stream.stream}.yaml"
    ) * is_derived


def _unknown(payload: Payload, schema_id: int, where: str) -> UnknownSchemaIdError:
    name = payload.stream.stream
    return UnknownSchemaIdError(
        f"stream {name}: the schema registry has no schema id {schema_id} for subject "
        f"{payload.subject}, {where}; the batch waits, nothing of it is visible",
        f"register or restore the schema, then `frazil run {name}`; if such {payload.part}s are "
        f"garbage, set `{payload.part}: {{unknown_id: quarantine}}` in {name}.yaml",
    )
