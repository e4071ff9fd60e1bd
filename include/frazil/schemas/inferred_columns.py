"""Columns of a stream whose file lists none: from the table, or from registered schemas."""

import json
from collections.abc import Mapping

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
from frazil.kafka.schema_registry import Registered
from frazil.ledger import keys
from frazil.ledger.keys import KAFKA_COLUMN
from frazil.schemas.payloads import (
    Payload,
    derive_payload_columns,
    find_latest_schema,
    list_payloads,
)
from frazil.streams.column_types import format_type
from frazil.streams.models import Stream
from frazil.streams.schema_changes import follow_columns
from frazil.workspace import Workspace


def with_columns(work: Workspace, view: TableView | None = None) -> Workspace:
    """Return the workspace with the columns that the stream file does not list.

    They come from the table, so that a batch is decoded with the columns it was planned with;
    before the table exists they come from the newest registered schema. Without a `view` the table
    is loaded, if the file leaves columns out.

    Raises:
        RegistryUnavailableError, UnknownSubjectError: there is neither a table nor a schema.
        SchemaMisfitError: no column type holds a field of the schema exactly.
        StreamFileError: the schema's columns contradict the stream file.
    """
    stream = work.stream
    if not stream.needs_columns:
        return work
    table = (view or TableView(work.store, stream.table.name)).found
    found = _read_table_columns(stream, table.schema()) if table else {}
    for payload in _list_inferred_payloads(stream):
        if payload.part not in found:
            schema = find_latest_schema(work.registry(payload.options.registry), payload)
            columns = derive_payload_columns(payload, schema, is_new=True)
            found[payload.part] = {column.name: format_type(column.type) for column in columns}
    return work.with_stream(_list_columns(stream, found), stream)


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
    if known is work or view.found is None:
        return known
    stored = read_pending_schemas(view.table.properties, stream.stream)
    found: dict[str, dict[str, str]] = {}
    pending: tuple[int, ...] = ()
    latest: dict[str, int] = {}
    inferred = {payload.part for payload in _list_inferred_payloads(stream)}
    for payload in (p for p in list_payloads(known.stream) if p.part in inferred):
        can_be_pending = payload.part == "value" and payload.has_schema_id
        schemas, newest = _find_schemas(work, payload, stored if can_be_pending else ())
        latest |= {payload.part: newest.id} if newest else {}
        columns = payload.columns
        for schema in schemas:
            columns = follow_columns(columns, derive_payload_columns(payload, schema))
        found[payload.part] = {c.name: format_type(c.type) + "!" * c.required for c in columns}
        if can_be_pending:
            pending = tuple(schema.id for schema in schemas)
    return work.with_stream(_list_columns(stream, found), stream, pending, latest)


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
        derive_payload_columns(payload, newest)
    except SchemaMisfitError:
        return schemas, newest
    return (schemas if newest in schemas else [*schemas, newest]), newest


def _list_inferred_payloads(stream: Stream) -> list[Payload]:
    """List the parts whose columns come from a registered schema."""
    return [
        payload
        for payload in list_payloads(stream)
        if (stream.value.needs_columns if payload.part == "value" else stream.key.needs_type)
    ]


def _read_table_columns(stream: Stream, schema: Schema) -> dict[str, dict[str, str]]:
    """Return the table's columns by part, with their types, for the parts that list none."""
    try:
        columns = read_columns(schema)
    except ValueError as error:
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {stream.table.name} has {error}",
            f"list the other columns of the stream under value.columns in {stream.stream}.yaml",
        ) from error
    found = {}
    key = {n: t for n, t in columns.items() if stream.key.convert and n == stream.key.column}
    if stream.key.needs_type and key:
        found["key"] = key
    if stream.value.needs_columns:
        found["value"] = {n: t for n, t in columns.items() if n not in key and n != KAFKA_COLUMN}
    return found


def _list_columns(stream: Stream, found: dict[str, dict[str, str]]) -> Stream:
    """Return the stream as if its file listed the columns."""
    content = stream.model_dump(by_alias=True, exclude_unset=True)
    if stream.value.needs_columns:
        content["value"]["columns"] = found["value"]
    if stream.key.needs_type:
        content["key"]["type"] = found["key"][stream.key.column]
    try:
        return Stream.model_validate(content)
    except ValidationError as error:
        reasons = "; ".join(
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()
        )
        raise StreamFileError(
            f"stream {stream.stream}: with the columns of the registered schema, {reasons}",
            f"fix {stream.stream}.yaml, or list value.columns there",
        ) from error


def read_pending_schemas(properties: Mapping[str, str], stream: str) -> tuple[int, ...]:
    """Read the ids of the registered schemas whose changes are not decided, the oldest first.

    They stay pending until the table has their columns, whichever schema is the newest: Kafka or
    the dead letters may still hold their records.
    """
    return tuple(json.loads(properties.get(keys.schema_question_key(stream), "[]")))
