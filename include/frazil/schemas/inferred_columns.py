"""Columns of a stream whose file lists none, and its key: from the table, or from schemas.

The schemas are those of a registry; the key may also be in the first events of the topic.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pyiceberg.schema import Schema

from frazil.errors import (
    IncompatibleTableError,
    SchemaMisfitError,
    StreamFileError,
    UnknownSubjectError,
)
from frazil.iceberg.table_schema import read_columns
from frazil.iceberg.table_view import TableView
from frazil.kafka.consumer import OffsetConsumer
from frazil.kafka.schema_registry import Registered
from frazil.ledger import keys
from frazil.ledger.keys import KAFKA_COLUMN
from frazil.ledger.offsets import OffsetRange, describe_partition
from frazil.ledger.stored_properties import ANY_TABLE, parse_numbers, read_property
from frazil.messages import read_reason
from frazil.schemas.avro import read_avro
from frazil.schemas.payloads import (
    Payload,
    derive_payload_columns,
    find_latest_schema,
    follow_schema,
    list_payloads,
    suggest_own_file,
)
from frazil.schemas.source_types import NotConvertibleError, Record
from frazil.streams.change_events import FROM_KEY, OP
from frazil.streams.column_types import Column, format_type, parse_column, require_column
from frazil.streams.models import Stream
from frazil.streams.yaml_files import locate_field, name_field
from frazil.workspace import Workspace

_SEARCHED_RECORDS = 100
"""Records of each partition that are searched for a key."""


def with_columns(work: Workspace, view: TableView | None = None) -> Workspace:
    """Return the workspace with the columns and the key that the stream file leaves out.

    They come from the table, so that a batch is decoded with the columns it was planned with;
    before the table exists they come from the newest registered schemas, and the key of change
    events in JSON from the schema in the first keys of the topic. Without a `view` the table is
    loaded, if the file leaves anything out.

    Raises:
        RegistryUnavailableError, UnknownSubjectError: there is neither a table nor a schema.
        KafkaUnavailableError, UnknownTopicError: no key was read.
        SchemaMisfitError: no column type holds a field of the schema exactly; the keys have no
            schema, or the records no key.
        StreamFileError: the schema's columns contradict the stream file, or lack the key.
    """
    stream = work.stream
    if not _is_incomplete(stream):
        return work
    table = (view or TableView(work.store, stream.table.name)).found
    schema = None if table is None else table.schema()
    found = {} if schema is None else _read_table_columns(stream, schema)
    for payload in _list_inferred_payloads(stream):
        if payload.part not in found:
            newest = find_latest_schema(work.registry(payload.options.registry), payload)
            columns = derive_payload_columns(payload, newest, is_new=True)
            found[payload.part] = {column.name: format_type(column.type) for column in columns}
    if _takes_event_key(stream) and schema is None:
        ids = _match_columns(stream, _list_columns(stream, found), _read_key_fields(work))
    else:
        ids = _find_key(stream, found, schema)
    return work.with_stream(_complete(stream, found, ids), stream)


def with_event_key(work: Workspace, view: TableView | None = None) -> Workspace:
    """Return the workspace of a state table with the columns and the key of its change table.

    Without a `view` the change table is loaded, if the file leaves anything out.

    Raises:
        TableDroppedError, MissingTableError: there is no change table.
        IncompatibleTableError, StreamFileError: as in `complete_from_table`.
    """
    stream = work.stream
    if stream.table.state is None or not _is_incomplete(stream):
        return work
    view = view or TableView(work.store, stream.table.name)
    return work.with_stream(complete_from_table(stream, view.table.schema()), stream)


def complete_from_table(stream: Stream, schema: Schema) -> Stream:
    """Return the stream with what its file leaves out, from the schema of its table alone.

    Raises:
        IncompatibleTableError: the table has a column of a type that no stream has.
        StreamFileError: the table's columns contradict the stream file.
    """
    if not _is_incomplete(stream):
        return stream
    found = _read_table_columns(stream, schema)
    return _complete(stream, found, _find_key(stream, found, schema))


def with_newest_columns(work: Workspace, view: TableView | None = None) -> Workspace:
    """Return the workspace with the table's columns, changed as registered schemas require.

    These are the pending schemas of the stream and the newest one; the schema policy decides
    whether the table is changed too. A newest schema that cannot be converted exactly is ignored
    here, since staging reports it if records use it. Where records carry a schema id, a pending
    schema stays pending even if a newer one no longer requires the change.

    Raises:
        RegistryUnavailableError: the newest schema cannot be read.
    """
    stream = work.stream
    view = view or TableView(work.store, stream.table.name)
    known = with_columns(work, view)
    if not stream.needs_columns or view.found is None:
        return known
    stored = read_pending_schemas(view.table.properties, stream.stream, view.name)
    found: dict[str, dict[str, str]] = {}
    pending: tuple[int, ...] = ()
    latest: dict[str, int] = {}
    inferred = {payload.part for payload in _list_inferred_payloads(stream)}
    for payload in (p for p in list_payloads(known.stream) if p.part in inferred):
        can_be_pending = payload.part == "value" and payload.has_schema_id
        schemas, newest = _find_schemas(work, payload, stored if can_be_pending else ())
        latest |= {payload.part: newest.id} if newest else {}
        columns, followed = _follow_schemas(payload, schemas)
        own = (column for column in columns if column.name.lower() not in payload.added_names)
        found[payload.part] = {c.name: format_type(c.type) + "!" * c.required for c in own}
        if can_be_pending:
            pending = followed
    completed = _complete(stream, found, known.stream.table.id_columns)
    return work.with_stream(completed, stream, pending, latest)


def _find_schemas(
    work: Workspace, payload: Payload, pending: tuple[int, ...]
) -> tuple[list[Registered], Registered | None]:
    """Return the schemas that may change the table, the pending ones first; and the newest one."""
    registry = work.registry(payload.options.registry)
    found = (registry.find_schema(number, payload.subject) for number in pending)
    schemas = [schema for schema in found if schema is not None]
    try:
        newest = find_latest_schema(registry, payload)
    except UnknownSubjectError:
        return schemas, None
    try:
        follow_schema(payload, payload.columns, newest)
    except SchemaMisfitError:
        return schemas, newest
    return (schemas if newest in schemas else [*schemas, newest]), newest


def _follow_schemas(
    payload: Payload, schemas: Iterable[Registered]
) -> tuple[tuple[Column, ...], tuple[int, ...]]:
    """Return the columns that the schemas require, and the ids of those that fit together."""
    columns, ids = payload.columns, []
    for schema in schemas:
        with suppress(SchemaMisfitError):  # two pending names that differ only in case
            columns = follow_schema(payload, columns, schema)
            ids.append(schema.id)
    return columns, tuple(ids)


def _list_inferred_payloads(stream: Stream) -> list[Payload]:
    """List the parts whose columns come from a registered schema."""
    return [
        payload
        for payload in list_payloads(stream)
        if (stream.value.needs_columns if payload.part == "value" else stream.key.needs_type)
    ]


def _read_table_columns(stream: Stream, schema: Schema) -> dict[str, dict[str, str]]:
    """Return the table's columns by part, with their types, for the parts that list none."""
    if not stream.needs_columns:
        return {}
    try:
        columns = read_columns(schema)
    except ValueError as error:
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {stream.table.name} has {error}",
            f"list the other columns of the stream under value.columns in {stream.stream}.yaml",
        ) from error
    found = {}
    names = {*stream.key.columns} or {stream.key.column}
    key = {n: t for n, t in columns.items() if stream.key.convert and n in names}
    if stream.key.needs_type and key:
        found["key"] = key
    if stream.value.needs_columns:
        others = {KAFKA_COLUMN, *key, *stream.value.typed_columns}  # those of events are added
        found["value"] = {n: t for n, t in columns.items() if n not in others}
    return found


def _list_columns(stream: Stream, found: Mapping[str, dict[str, str]]) -> tuple[Column, ...]:
    """List the columns of the value, which the file lists or which were found."""
    if "value" not in found:
        return stream.value.parsed_columns
    return tuple(parse_column(name, text) for name, text in found["value"].items())


def _find_key(
    stream: Stream, found: Mapping[str, dict[str, str]], schema: Schema | None
) -> tuple[str, ...]:
    """Return the columns of the key: those that the file names, or that the table requires."""
    if schema is None or not _takes_event_key(stream):
        return stream.table.id_columns
    required = {field.name for field in schema.fields if field.required} - {OP}
    return tuple(each.name for each in _list_columns(stream, found) if each.name in required)


def _complete(stream: Stream, found: Mapping[str, dict[str, str]], ids: Sequence[str]) -> Stream:
    """Return the stream as if its file listed the columns, and named the key `ids`."""
    content = stream.model_dump(by_alias=True, exclude_unset=True)
    what, instead = "the columns of the registered schema", "list value.columns there"
    if stream.value.needs_columns:
        content["value"]["columns"] = found["value"]
    if stream.key.needs_type and "key" in found:
        content["key"]["type"] = found["key"][stream.key.column]
    if _takes_event_key(stream) and not stream.value.needs_columns:
        what = f"the key {', '.join(ids)} of its change events"
        instead = "name the columns in table.id_columns"
    if stream.table.state is not None:
        content["table"]["id_columns"] = [*ids]
        content["value"]["columns"] = {
            name: require_column(text) if name in ids else text
            for name, text in content["value"]["columns"].items()
        }
    return _validate(content, what, instead + suggest_own_file(stream))


def _validate(content: dict[str, Any], what: str, instead: str) -> Stream:
    """Return the stream with what its file leaves out.

    Raises:
        StreamFileError: it contradicts the stream file; the next step is also what to do instead.
    """
    try:
        return Stream.model_validate(content)
    except ValidationError as error:
        reasons = "; ".join(
            f"{name_field(locate_field(detail))}: {read_reason(detail)}"
            for detail in error.errors()
        )
        name = content["stream"]
        raise StreamFileError(
            f"stream {name}: with {what}, {reasons}", f"fix {name}.yaml, or {instead}"
        ) from error


def read_pending_schemas(
    properties: Mapping[str, str], stream: str, table: str = ANY_TABLE
) -> tuple[int, ...]:
    """Read the ids of the registered schemas whose changes are not decided, the oldest first.

    They stay pending until the table has their columns, whichever schema is the newest: Kafka or
    the dead letters may still hold their records.

    Raises:
        UnknownStateError: the property cannot be read; the error names `table`.
    """
    without = "only the newest schema is compared with the table then"
    key = keys.schema_question_key(stream)
    return tuple(read_property(properties, key, parse_numbers, without, table) or ())


def list_key_fields(work: Workspace) -> tuple[str, ...]:
    """Return the fields that the key of each event must have; none if the file names the key."""
    declared = work.file_stream or work.stream
    if not _takes_event_key(declared):
        return ()
    ids = work.stream.table.id_columns
    return tuple(c.field for c in work.stream.value.parsed_columns if c.name in ids)


def _is_incomplete(stream: Stream) -> bool:
    """Return whether the file leaves columns or the key to the table, or to schemas."""
    return stream.needs_columns or _takes_event_key(stream)


def _takes_event_key(stream: Stream) -> bool:
    """Return whether the file takes the columns of the key from the events."""
    return stream.table.id_columns == (FROM_KEY,)


def _match_columns(
    stream: Stream, columns: Sequence[Column], fields: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns of the key's fields, in the order of the stream's columns."""
    absent = [name for name in fields if name not in {column.field for column in columns}]
    if absent:
        raise _make_unknown_field_error(stream, ", ".join(absent))
    return tuple(column.name for column in columns if column.field in fields)


def _make_unknown_field_error(stream: Stream, names: str) -> StreamFileError:
    """Return the error for fields of the key that no column has."""
    facts = f"stream {stream.stream}: the key of its change events has {names}, "
    if not stream.value.needs_columns:
        return StreamFileError(
            f"{facts}for which value.columns has no column",
            f"add a column for each field of the key to {stream.stream}.yaml; if the rows lack the "
            f"field, {_name_key(stream)}",
        )
    return StreamFileError(
        f"{facts}which `after` of their registered schema lacks",
        "if Debezium's topic routing adds the field to the key, and the keys of its source tables "
        "differ, set key.enforce.uniqueness=false there and read a new topic; or "
        f"{_name_key(stream)}",
    )


def _read_key_fields(work: Workspace) -> tuple[str, ...]:
    stream = work.stream
    if stream.value.convert == "json":
        return _read_json_key(work)
    payload = Payload(stream, "key")
    try:
        schema = find_latest_schema(work.registry(payload.options.registry), payload)
    except UnknownSubjectError as error:
        raise UnknownSubjectError(
            f"stream {stream.stream}: the schema registry has no subject {payload.subject}, so "
            f"the key columns are unknown (`id_columns: {FROM_KEY}`); nothing was read",
            f"`frazil run {stream.stream}` once there are records; if their keys are JSON, "
            f"{_name_key(stream, of_topic=False)}; if no record has a key, {_give_key(stream)}",
        ) from error
    try:
        root = read_avro(schema).root if schema.type == "AVRO" else None
    except NotConvertibleError:
        root = None
    if not isinstance(root, Record):
        problem = f"schema {schema.id} of subject {payload.subject} is not an Avro record"
        step = "let the connector write its keys as Avro records, and read a new topic; or "
        unread = ": a delete whose key cannot be read is a dead letter then"
        raise _make_misfit_error(stream, problem, step + _name_key(stream, unread))
    return tuple(name for name, _ in root.fields)


def _read_json_key(work: Workspace) -> tuple[str, ...]:
    """Return the fields of the first schema in the keys of the topics."""
    stream = work.stream
    found = choose_key_fields(stream, _fetch_keys(work))
    if found:
        return found
    raise UnknownSubjectError(
        f"stream {stream.stream}: {', '.join(stream.source.names)} has no record yet, and "
        f"`id_columns: {FROM_KEY}` needs the key of one; nothing was read",
        f"`frazil run {stream.stream}` once there are records, or name the columns in "
        f"table.id_columns of {stream.stream}.yaml",
    )


def _fetch_keys(work: Workspace) -> Iterator[tuple[str, bytes | None]]:
    """Yield the keys of the first records of each partition, with topic and partition."""
    isolation = work.stream.source.isolation
    consumer = OffsetConsumer(work.kafka, work.kafka_config)
    for facts in work.kafka.fetch_topics(work.stream.source.names, isolation):
        for number, part in enumerate(facts.partitions):
            span = OffsetRange(part.earliest, min(part.end, part.earliest + _SEARCHED_RECORDS))
            for each in consumer.fetch_records(facts.topic, number, span, isolation):
                yield describe_partition(facts.topic, number), each.key


def choose_key_fields(stream: Stream, keys: Iterable[tuple[str, bytes | None]]) -> tuple[str, ...]:
    """Return the fields of the first schema in the keys of records, given with their places.

    Returns:
        No fields, if there are no records.

    Raises:
        SchemaMisfitError: no key has a schema, or no record has a key.
    """
    without, keyless = "", 0
    for place, key in keys:
        if key is None:
            keyless += 1
            continue
        fields = _read_schema(key)
        if fields:
            return fields
        without = without or place
    if without:
        problem = f"the first key of {without} has no schema, nor have those behind it"
        step = "set key.converter.schemas.enable=true at the connector, and read a new topic; or "
        raise _make_misfit_error(stream, problem, step + _name_key(stream))
    if keyless:
        raise _make_keyless_error(stream, keyless)
    return ()


def _make_keyless_error(stream: Stream, records: int) -> SchemaMisfitError:
    """Return the error for a topic whose records have no key, as those of a table without one."""
    first = "the first record" if records == 1 else f"the first {records} records"
    has = "has" if records == 1 else "have"
    return SchemaMisfitError(
        f"stream {stream.stream}: {first} of {', '.join(stream.source.names)} {has} no key, which "
        f"`id_columns: {FROM_KEY}` needs; nothing was read",
        _give_key(stream),
    )


def _give_key(stream: Stream) -> str:
    """Return what a person can do about change events without a key."""
    without = ": a delete without a key is a dead letter then"
    return (
        "give the source table a primary key, or Debezium `message.key.columns`, and read a new "
        f"topic; or {_name_key(stream, without)}"
    )


def _name_key(stream: Stream, then: str = "", *, of_topic: bool = True) -> str:
    """Return how the stream file names the key, and `then` what that means.

    `of_topic` adds what else can be done about one topic of a pattern.
    """
    mark = " and mark them with `!`" if stream.value.columns else ""
    own_file = suggest_own_file(stream) if of_topic else ""
    return f"name the columns in table.id_columns{mark}{then}{own_file}"


def _read_schema(key: bytes) -> tuple[str, ...]:
    """Return the fields of a key's own schema, as Kafka Connect's JSON converter writes it."""
    try:
        message = json.loads(key)
    except (ValueError, RecursionError):
        return ()
    schema = message.get("schema") if isinstance(message, Mapping) else None
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    listed = fields if isinstance(fields, list) else []
    names = [each.get("field") if isinstance(each, Mapping) else None for each in listed]
    texts = tuple(name for name in names if isinstance(name, str))
    return texts if len(texts) == len(names) else ()


def _make_misfit_error(stream: Stream, problem: str, step: str) -> SchemaMisfitError:
    return SchemaMisfitError(
        f"stream {stream.stream}: {problem}, so the key columns are unknown "
        f"(`id_columns: {FROM_KEY}`); nothing was read",
        step,
    )
