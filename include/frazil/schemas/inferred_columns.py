"""Columns that a stream file leaves out: the table's own, or before it is there the schema's."""

import json
from collections.abc import Mapping
from dataclasses import replace

from pydantic import ValidationError
from pyiceberg.schema import Schema

from frazil.errors import (
    IncompatibleTableError,
    SchemaMisfitError,
    StreamFileError,
    UnknownSubjectError,
)
from frazil.iceberg.table_schema import read_columns
from frazil.kafka.schema_registry import Registered
from frazil.ledger import keys
from frazil.ledger.keys import KAFKA_COLUMN
from frazil.schemas.payloads import (
    Payload,
    derive_payload_columns,
    find_latest_schema,
    list_payloads,
)
from frazil.streams.column_types import Column, format_type
from frazil.streams.models import Stream
from frazil.streams.schema_changes import follow_columns
from frazil.workspace import Workspace


def with_columns(work: Workspace) -> Workspace:
    """Fill in the columns that the stream file leaves out; else give the workspace as it is.

    Once the table is there its columns count: a batch is decoded as it was planned.

    Raises:
        RegistryUnavailableError, UnknownSubjectError: there is no table yet, and no schema.
        SchemaMisfitError: a field of the schema has no exact form in a column.
        StreamFileError: what the file says of columns does not fit those of the schema.
    """
    stream = work.stream
    if not stream.needs_columns:
        return work
    table = work.store.find(stream.table.name)
    found = _read_table(stream, table.schema()) if table else {}
    for payload in _list_asked(stream):
        if payload.part not in found:
            found[payload.part] = {c.name: format_type(c.type) for c in _derive(work, payload)}
    return replace(work, stream=_fill_in(stream, found), written=stream)


def with_newest_columns(work: Workspace) -> Workspace:
    """Fill in the columns as `with_columns`, and add what the newest registered schema brings.

    The stream's schema policy decides whether the table follows. A schema without an exact form
    brings nothing: where it matters the stage says so. Where records name their schema, what was
    asked for once stays in question, also behind a newer schema that no longer asks for it.

    Raises:
        RegistryUnavailableError: nobody knows what the newest schema asks for.
    """
    known = with_columns(work)
    stream = work.stream
    table = work.store.find(stream.table.name) if known is not work else None
    if table is None:
        return known
    kept = read_pending_schemas(table.properties, stream.stream)
    found: dict[str, dict[str, str]] = {}
    added_schema_ids: tuple[int, ...] = ()
    asked = {payload.part for payload in _list_asked(stream)}
    for payload in (p for p in list_payloads(known.stream) if p.part in asked):
        has_names = payload.part == "value" and payload.is_framed
        schemas = _find_asking(work, payload, kept if has_names else ())
        columns = payload.columns
        for schema in schemas:
            columns = follow_columns(columns, derive_payload_columns(payload, schema))
        found[payload.part] = {c.name: format_type(c.type) + "!" * c.required for c in columns}
        if has_names:
            added_schema_ids = tuple(schema.id for schema in schemas)
    return replace(
        work, stream=_fill_in(stream, found), written=stream, added_schema_ids=added_schema_ids
    )


def _find_asking(work: Workspace, payload: Payload, kept: tuple[int, ...]) -> list[Registered]:
    """Find the schemas that may change the table: what is in question first, then the newest."""
    registry = work.registry(payload.options.registry)
    schemas = [found for number in kept if (found := registry.find_schema(number)) is not None]
    try:
        newest = find_latest_schema(registry, payload)
        derive_payload_columns(payload, newest)
    except (UnknownSubjectError, SchemaMisfitError):
        return schemas
    return schemas if newest in schemas else [*schemas, newest]


def _list_asked(stream: Stream) -> list[Payload]:
    """List the parts whose columns come from a registered schema."""
    return [
        payload
        for payload in list_payloads(stream)
        if (stream.value.needs_columns if payload.part == "value" else stream.key.needs_type)
    ]


def _derive(work: Workspace, payload: Payload) -> tuple[Column, ...]:
    schema = find_latest_schema(work.registry(payload.options.registry), payload)
    return derive_payload_columns(payload, schema)


def _read_table(stream: Stream, schema: Schema) -> dict[str, dict[str, str]]:
    """Take the columns that the file leaves out from the table."""
    try:
        columns = read_columns(schema)
    except ValueError as error:
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {stream.table.name} has {error}",
            "list the columns that the stream fills in value.columns, without this one",
        ) from error
    found = {}
    key = {n: t for n, t in columns.items() if stream.key.convert and n == stream.key.column}
    if stream.key.needs_type and key:
        found["key"] = key
    if stream.value.needs_columns:
        found["value"] = {n: t for n, t in columns.items() if n not in key and n != KAFKA_COLUMN}
    return found


def _fill_in(stream: Stream, found: dict[str, dict[str, str]]) -> Stream:
    """Give the stream as if its file had named the columns."""
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
            f"mend {stream.stream}.yaml, or list value.columns there",
        ) from error


def read_pending_schemas(properties: Mapping[str, str], stream: str) -> tuple[int, ...]:
    """Read the ids of the schemas that asked, in the order in which they did.

    What they ask for stays in question until the table has it, whichever schema is the newest:
    records of theirs may wait in Kafka, or among the letters.
    """
    return tuple(json.loads(properties.get(keys.schema_question_key(stream), "[]")))
