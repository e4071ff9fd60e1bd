"""The state table and its delete memory in the catalog: created and extended as changes need."""

from collections.abc import Iterable, Iterator
from itertools import count

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from frazil.errors import IncompatibleTableError
from frazil.iceberg.catalog import NewTable
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.table_schema import (
    build_partition_spec,
    build_sort_order,
    build_table_schema,
    list_required_properties,
    to_columns,
    to_iceberg_type,
)
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ingest.publishing import Marker, publish_marker
from frazil.ledger import keys
from frazil.schemas.merge import merge_schema
from frazil.state_tables.merge_rules import DELETED_AT, UNAVAILABLE, find_operation
from frazil.streams.change_events import SOURCE_SEQUENCES
from frazil.streams.column_types import Column, Primitive
from frazil.streams.models import Stream
from frazil.streams.partitioning import parse_partition_field
from frazil.streams.schema_changes import compare_columns
from frazil.streams.state_sections import StateTable
from frazil.workspace import Workspace

_MERGE_ON_READ = {"write.merge.mode": "merge-on-read", "write.delete.granularity": "file"}
_SIMPLE = frozenset({"add_column", "widen", "relax"})


def require_state(stream: Stream) -> StateTable:
    """Return the stream's state table.

    Raises:
        IncompatibleTableError: the stream appends its records.
    """
    if stream.table.state is None:
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {stream.table.name} has one row for each record; there "
            "is nothing to merge",
            "`mode: upsert` in the stream file of another table keeps one row for each key",
        )
    return stream.table.state


def list_state_columns(stream: Stream, changes: Schema) -> tuple[Column, ...]:
    """List the columns of the state table without `_kafka`, given the change table's schema."""
    names = [field.name for field in changes.fields]
    left_out = {keys.KAFKA_COLUMN, UNAVAILABLE, find_operation(stream, names)}
    columns = to_columns(field for field in changes.fields if field.name not in left_out)
    if stream.table.deletes == "mark":
        columns += (Column(DELETED_AT, Primitive("timestamptz"), required=False),)
    return columns


def ensure_state_table(work: Workspace, state: TableView, changes: Schema) -> tuple[TableView, str]:
    """Create or extend the state table and the delete memory.

    Returns:
        The view of the state table after that, and why all changes have to be folded again, or "".

    Raises:
        IncompatibleTableError: a table of the state's name is no state table of this stream.
    """
    stream, store = work.stream, work.store
    columns = list_state_columns(stream, changes)
    if state.found is None:
        state = state.with_table(store.create(state.name, _new_state(stream, columns)))
    require_own_state(stream, state.table)
    if state.table.current_snapshot() is None:
        retry_commit(f"beginning state table {state.name}", lambda: _begin(work, state.name))
        state = state.reload()
    memory = require_state(stream).deletes_name
    store.find(memory) or store.create(
        memory, NewTable(schema=_build_memory_schema(stream, columns))
    )
    views = iterate_views(state)
    return retry_commit(
        f"extending state table {state.name}", lambda: _extend(next(views), columns)
    )


def require_own_state(stream: Stream, table: Table) -> None:
    """Raise if a table with the name of the state table holds something else.

    Raises:
        IncompatibleTableError: with the next step.
    """
    if table.properties.get(keys.STATE_OF) != stream.stream:
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {'.'.join(table.name())} exists and is not the state "
            "table of this stream; nothing was written",
            "give the stream a new table.name: a table keeps its mode",
        )


def _new_state(stream: Stream, columns: tuple[Column, ...]) -> NewTable:
    state, schema = require_state(stream), build_table_schema(columns)
    fields = tuple(parse_partition_field(text, columns) for text in state.partition_by)
    spec = build_partition_spec(schema, fields)
    return NewTable(
        schema=schema,
        spec=spec,
        sort_order=build_sort_order(schema, state.sort_by),
        properties={
            **_MERGE_ON_READ,
            **stream.table.properties,
            keys.STATE_OF: stream.stream,
            **list_required_properties(schema, spec),
        },
    )


def _build_memory_schema(stream: Stream, columns: Iterable[Column]) -> Schema:
    """Return the schema of deletes: key, sequence, coordinates, and the memory they belong to."""
    ids, types = count(1), {column.name: column.type for column in columns}
    types[keys.EVENT_TIME] = Primitive("timestamptz")
    types |= dict.fromkeys(SOURCE_SEQUENCES, Primitive("long"))
    fields = [
        NestedField(next(ids), name, to_iceberg_type(types[name], ids), required=True)
        for name in stream.table.id_columns
    ]
    sequence = [
        NestedField(next(ids), f"s{index}", to_iceberg_type(types[name], ids), required=True)
        for index, name in enumerate(stream.sequence)
    ]
    if sequence:
        fields.append(NestedField(next(ids), "_sequence", StructType(*sequence), required=True))
    fields.append(NestedField(next(ids), keys.KAFKA_COLUMN, _coordinates(ids), required=True))
    return Schema(*fields, NestedField(next(ids), "memory", StringType(), required=True))


def _coordinates(ids: Iterator[int]) -> StructType:
    return StructType(
        NestedField(next(ids), "topic", StringType(), required=True),
        NestedField(next(ids), "partition", IntegerType(), required=True),
        NestedField(next(ids), "offset", LongType(), required=True),
    )


def _begin(work: Workspace, name: str) -> None:
    """Give a new state table its first snapshot, which staging branches need."""
    table = work.store.load(name)
    if table.current_snapshot() is None:
        extra = {keys.STREAM: work.stream.stream}
        publish_marker(work.store, table, Marker(keys.BOOTSTRAP, {}, None, work.run_id, extra))


def _extend(state: TableView, columns: tuple[Column, ...]) -> tuple[TableView, str]:
    """Add and widen columns; return other changes, by which all rows have to be folded again."""
    table = state.table
    schema = table.schema()
    have = to_columns(field for field in schema.fields if field.name != keys.KAFKA_COLUMN)
    changes = compare_columns(have, columns, frozenset())
    if not changes:
        return state, ""
    merged = merge_schema(schema, table.metadata.last_column_id, columns, changes)
    newest = max(each.schema_id for each in table.metadata.schemas)
    merged = merged.model_copy(update={"schema_id": newest + 1})
    updates: list[TableUpdate] = [
        AddSchemaUpdate(schema_=merged),
        SetCurrentSchemaUpdate(schema_id=-1),
    ]
    extended = state.with_table(commit_once(state.store, table, {}, updates))
    return extended, "; ".join(change.text for change in changes if change.kind not in _SIMPLE)
