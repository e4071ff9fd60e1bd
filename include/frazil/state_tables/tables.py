"""The state table and its delete memory in the catalog, which follow their change table."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, count

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from frazil.errors import IncompatibleTableError, MergeHaltedError
from frazil.iceberg.catalog import NewTable
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.commits import set_properties
from frazil.iceberg.table_schema import (
    build_partition_spec,
    build_sort_order,
    build_table_schema,
    list_required_properties,
    replace_schema,
    to_columns,
    to_iceberg_type,
)
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ingest.publishing import Marker, publish_marker
from frazil.ledger import keys
from frazil.ledger.stored_properties import read_property
from frazil.schemas.partition_evolution import (
    list_name_clashes,
    replace_in_sort_order,
    replace_in_spec,
    use_spec,
)
from frazil.state_tables.followed_schema import decode_pairs, encode_pairs, follow_schema
from frazil.state_tables.merge_rules import (
    DELETED_AT,
    UNAVAILABLE,
    find_operation,
    has_position,
    is_added,
)
from frazil.streams.change_events import SOURCE_SEQUENCES
from frazil.streams.column_types import Column, Primitive
from frazil.streams.models import Stream
from frazil.streams.partitioning import name_source, parse_partition_field
from frazil.streams.state_sections import MEMORY, SEQUENCE, StateTable
from frazil.workspace import Workspace

_MERGE_ON_READ = {"write.merge.mode": "merge-on-read", "write.delete.granularity": "file"}
_MARK = Column(DELETED_AT, Primitive("timestamptz"), required=False)
_OWN_COLUMNS = frozenset({keys.KAFKA_COLUMN, DELETED_AT})


def require_state(stream: Stream) -> StateTable:
    """Return the stream's state table.

    Raises:
        IncompatibleTableError: the stream appends its records.
    """
    if stream.table.state is None:
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {stream.table.name} has one row for each record, "
            "and no state table",
            "`mode: upsert` in the stream file of another table keeps one row for each key",
        )
    return stream.table.state


def list_state_columns(stream: Stream, changes: Schema) -> tuple[Column, ...]:
    """List the columns of the state table without `_kafka`, given the change table's schema."""
    columns = to_columns(_list_folded_fields(stream, changes))
    if stream.table.deletes == "mark":
        columns += (_MARK,)
    return columns


def _list_folded_fields(stream: Stream, changes: Schema) -> tuple[NestedField, ...]:
    """List the fields of the change table whose values the state table holds."""
    names = [field.name for field in changes.fields]
    left_out = {keys.KAFKA_COLUMN, find_operation(stream, names)}
    if is_added(stream, UNAVAILABLE):
        left_out.add(UNAVAILABLE)
    return tuple(field for field in changes.fields if field.name not in left_out)


def ensure_state_table(
    work: Workspace, state: TableView, changes: Schema, memory: Table | None = None
) -> TableView:
    """Create the state table and the delete memory, or let them follow the change table's schema.

    `memory` is the delete memory, if it is loaded.

    Returns:
        The view of the state table after that.

    Raises:
        IncompatibleTableError: a table of the state's name is no state table of this stream.
        MergeHaltedError: a column of the key got another type.
    """
    stream, store = work.stream, work.store
    columns = list_state_columns(stream, changes)
    if state.found is None:
        state = state.with_table(store.create(state.name, _new_state(stream, columns)))
    require_own_state(stream, state.table)
    if state.table.current_snapshot() is None:
        retry_commit(f"beginning state table {state.name}", lambda: _begin(work, state.name))
        state = state.reload()
    views = iterate_views(state)
    state = retry_commit(
        f"columns of state table {state.name}",
        lambda: _follow_changes(next(views), stream, changes),
    )
    _ensure_memory(work, _build_memory_schema(stream, columns), memory)
    return state


def _ensure_memory(work: Workspace, schema: Schema, memory: Table | None) -> None:
    """Create the delete memory, or let its columns follow the key's and the sequence's."""
    name = require_state(work.stream).deletes_name
    found = work.store.find(name) if memory is None else memory
    if found is None:
        work.store.create(name, NewTable(schema=schema))
        return
    tables = chain([found], iter(partial(work.store.load, name), None))

    def follow() -> None:
        table = next(tables)
        last_id = table.metadata.last_column_id
        followed = follow_schema(table.schema(), schema.fields, {}, last_id)
        updates, _ = replace_schema(table.metadata, followed.schema)
        if updates:
            commit_once(work.store, table, {}, updates)

    retry_commit(f"columns of {name}", follow)


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
        NestedField(next(ids), f"s{index}", to_iceberg_type(types[name], ids), required=False)
        for index, name in enumerate(stream.sequence)
    ]
    if sequence:
        fields.append(NestedField(next(ids), SEQUENCE, StructType(*sequence), required=True))
    fields.append(NestedField(next(ids), keys.KAFKA_COLUMN, _coordinates(ids), required=True))
    return Schema(*fields, NestedField(next(ids), MEMORY, StringType(), required=True))


def _coordinates(ids: Iterator[int]) -> StructType:
    return StructType(
        NestedField(next(ids), "topic", StringType(), required=True),
        NestedField(next(ids), "partition", IntegerType(), required=True),
        NestedField(next(ids), "offset", LongType(), required=True),
    )


def _begin(work: Workspace, name: str) -> None:
    """Commit the first snapshot of a new state table, which staging branches need."""
    table = work.store.load(name)
    if table.current_snapshot() is None:
        extra = {keys.STREAM: work.stream.stream}
        publish_marker(work.store, table, Marker(keys.BOOTSTRAP, {}, None, work.run_id, extra))


def _follow_changes(state: TableView, stream: Stream, changes: Schema) -> TableView:
    """Add the columns of the change table to the state table, in one commit with the field ids.

    Raises:
        MergeHaltedError: a column of the key would be a new one, which rows lack, or one has the
            name of a partition field.
    """
    table = state.table
    pairs = _read_pairs(table)
    fields = _list_folded_fields(stream, changes)
    last_id = table.metadata.last_column_id
    followed = follow_schema(table.schema(), fields, pairs, last_id, _OWN_COLUMNS)
    replaced = [name for name in stream.table.id_columns if name in followed.added]
    if replaced and has_position(state.history, stream.stream):
        raise MergeHaltedError(
            f"stream {stream.stream}: key column {', '.join(replaced)} has another type than in "
            f"the rows of {state.name}; nothing was written",
            "give the stream a new name and table, which reads the topic from its beginning",
        )
    schema = followed.schema
    if stream.table.deletes == "mark" and DELETED_AT not in schema.column_names:
        schema = _add_mark(schema, max(last_id, schema.highest_field_id) + 1)
    _require_partitions(stream, state, schema)
    updates, _ = replace_schema(table.metadata, schema)
    layout = require_state(stream)
    named = {*layout.sort_by, *map(name_source, layout.partition_by)}
    spec = replace_in_spec(table, schema, named)
    updates += [*use_spec(table, spec), *replace_in_sort_order(table, schema, named)]
    properties = {
        keys.STATE_FIELDS: encode_pairs(followed.pairs),
        **list_required_properties(schema, spec),
    }
    if not properties.items() <= table.properties.items():
        updates.append(set_properties(properties))
    return state.with_table(commit_once(state.store, table, {}, updates)) if updates else state


def _require_partitions(stream: Stream, state: TableView, schema: Schema) -> None:
    """Raise if a new column has the name of a partition field of another column.

    Raises:
        MergeHaltedError: there is one; Iceberg's Java library refuses to load such a table.
    """
    fields = [field for spec in state.table.specs().values() for field in spec.fields]
    names = sorted({clash.partition(":")[0] for clash in list_name_clashes(schema, fields)})
    if names:
        raise MergeHaltedError(
            f"stream {stream.stream}: a new column has the name of a partition field of "
            f"{state.name}, {', '.join(names)}; Spark cannot load such a table; nothing was "
            "written",
            "give the new column another name (`from:` in `columns`, or a rename of that column in "
            f"{stream.table.name}), or give the stream a new name and table, which reads the topic "
            "from its beginning",
        )


def _read_pairs(state: Table) -> dict[int, int]:
    """Read which field of the change table each field of the state table follows."""
    without = (
        "the next merge pairs the columns of both tables by their names: one that was renamed "
        "since the last merge is a new column then"
    )
    name = ".".join(state.name())
    return read_property(state.properties, keys.STATE_FIELDS, decode_pairs, without, name) or {}


def map_names(state: Table, changes: Schema) -> dict[str, str]:
    """Return name in a schema of the change table → name of the same column in the state table."""
    pairs = _read_pairs(state)
    names = {field.field_id: field.name for field in state.schema().fields}
    return {
        field.name: names[pairs[field.field_id]]
        for field in changes.fields
        if pairs.get(field.field_id) in names
    }


def _add_mark(schema: Schema, field_id: int) -> Schema:
    """Add the column of a deleted row's instant before `_kafka`."""
    mark = NestedField(field_id, DELETED_AT, TimestamptzType(), required=False)
    fields = list(schema.fields)
    index = next(i for i, field in enumerate(fields) if field.name == keys.KAFKA_COLUMN)
    return schema.model_copy(update={"fields": (*fields[:index], mark, *fields[index:])})
