"""State tables in stream files: how changes are ordered and merged, and the names of the tables.

A stream with `mode: upsert` fills the change table `<table>__changes` as any stream fills its
table. Its state table has one row per key, folded from the change table.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from frazil.ledger.keys import CHANGES_SUFFIX, DELETES_SUFFIX, EVENT_TIME
from frazil.streams.change_events import (
    FROM_KEY,
    OP,
    REST_FIELD,
    SOURCE,
    SOURCE_SEQUENCES,
    UNAVAILABLE,
)
from frazil.streams.column_types import Column, FieldError, Primitive, StructType, format_type
from frazil.streams.partitioning import name_source
from frazil.streams.routes import parse_table_name
from frazil.streams.sections import Key, Section, Value
from frazil.streams.timestamps import Whole

KEY_TYPES = frozenset(
    {"boolean", "int", "long", "decimal", "date", "timestamp", "timestamptz", "string", "uuid"}
)
"""What the columns of a key may be; `erase` and `where` read values of each."""
_SEQUENCES = frozenset({"int", "long", "decimal", "date", "timestamp", "timestamptz"})
MEMORY = "memory"
"""The column of the delete memory that says to which memory a delete belongs."""
SEQUENCE = "_sequence"
NEW_LOG_STEP = (
    "give the new log a stream and a table of its own, and let the source send every key again; "
    "where it cannot, read the rows of both state tables as one (docs/state-tables.md, A topic "
    "that starts over)"
)
"""What helps where the offsets of a state table's topic start over, without losing a key."""
_DELETED_AT = "_deleted_at"
STATE_COLUMNS = frozenset({_DELETED_AT, SEQUENCE})
"""Names of columns that a state table or its delete memory adds."""


def list_names(given: object) -> object:
    """Return one name as a list of names."""
    return (given,) if isinstance(given, str) else given


class SequenceBy(Section):
    """Order changes by their own columns."""

    sequence_by: Annotated[tuple[str, ...], BeforeValidator(list_names)] = Field(
        min_length=1,
        description="a required column, or several of which the first decides and the next ones "
        "break ties; also `_kafka.timestamp`, and for change events `_source.lsn` and "
        "`_source.ts_ms`",
    )


class Merge(Section):
    """When changes are merged into the state table of `mode: upsert`."""

    schedule: Literal["each_batch", "manual"] = Field(
        "each_batch",
        description="`each_batch` merges after every batch, `manual` only by `frazil merge` or "
        "the DAG `merge`",
    )
    max_changes: Whole = Field(
        20_000_000,
        ge=1,
        description="more changes than this are merged in slices of whole batches; each slice is "
        "a commit of its own",
    )


class Changes(Section):
    """How long the change table of `mode: upsert` keeps changes that newer ones have replaced."""

    keep_days: Whole | None = Field(
        None,
        ge=1,
        le=36_500,
        description="whole UTC days since their batch; the newest change of each key stays; "
        "default: all changes are kept",
    )


class StateTable(Section):
    """The state table; not an option, set when the file is loaded."""

    name: str
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()

    @property
    def deletes_name(self) -> str:
        """Return the name of the delete memory."""
        return self.name + DELETES_SUFFIX


@dataclass(frozen=True)
class StateOptions:
    """What a stream file says about its state table; `columns` are those of the change table."""

    value: Value
    key: Key
    columns: Sequence[Column]
    id_columns: tuple[str, ...]
    sequence: tuple[str, ...]
    cdc_field: str | None
    deletes: str
    tombstones: str

    @property
    def has_events(self) -> bool:
        """Return whether the changes are change events."""
        return self.value.change_events is not None

    @property
    def left_out(self) -> frozenset[str]:
        """Return the columns of the change table that its state table does not have."""
        if self.has_events:
            return frozenset({OP, UNAVAILABLE})
        is_added = self.cdc_field is None and self.tombstones == "delete"
        return frozenset({OP if is_added else self.cdc_field or ""})

    @property
    def named_ids(self) -> tuple[str, ...]:
        """Return the columns of the key; none yet if they are those of the events' keys."""
        from_events = self.has_events and self.id_columns == (FROM_KEY,)
        return () if from_events else self.id_columns

    def place(self, column: str) -> tuple[str, ...]:
        """Return where the file names a column."""
        if column == self.value.rest:
            return ("value", "rest")
        if column in self.key.typed_columns and column not in self.value.typed_columns:
            return ("key", "columns", column) if self.key.columns else ("key", "column")
        return ("value", "columns", column)


def split_state_table(given: object) -> object:
    """Return the section `table` so that it describes the change table, with `state` beside it.

    Raises:
        FieldError: the state table's name is none, or that of another table of Frazil.
    """
    if not isinstance(given, Mapping) or given.get("mode") != "upsert" or given.get("state"):
        return given
    if not isinstance(given.get("name"), str):
        return given
    try:
        parse_table_name(given["name"])
    except ValueError as error:
        raise FieldError(("name",), str(error)) from error
    state = {key: given[key] for key in ("name", "partition_by", "sort_by") if key in given}
    kept = {key: value for key, value in given.items() if key not in state}
    return {**kept, "name": given["name"] + CHANGES_SUFFIX, "state": state}


def validate_name(name: str) -> None:
    """Check that a table's name in a stream file is not that of a part of a state table.

    Raises:
        FieldError: the name ends like that of a change table or a delete memory.
    """
    for suffix in (CHANGES_SUFFIX, DELETES_SUFFIX):
        if name.endswith(suffix):
            raise FieldError(("name",), f"names ending in {suffix} belong to state tables")


def validate_operation_name(options: StateOptions) -> None:
    """Refuse a column with the name of the operation column (`_op`), unless it is that column.

    Raises:
        FieldError: with what to write instead.
    """
    if options.cdc_field is not None or options.has_events:
        return
    own = {*options.value.typed_columns, *options.key.typed_columns}
    for name in (each for each in own if each.lower() == OP):
        reason = (
            f"{name} is the name of the operation column: set `table.cdc_field` to it, or give the "
            "field another name and the stream a new table"
        )
        if options.tombstones == "delete":
            reason = "with `tombstones: delete` this column is added; give the field another name"
        raise FieldError(options.place(name), reason)


def validate_state_table(options: StateOptions, chosen: Collection[str]) -> None:
    """Check keys, sequence and operation of a state table; `chosen` are the section's options.

    Raises:
        FieldError: an option does not fit.
    """
    if options.has_events:
        _validate_event_table(options, chosen)
    elif options.tombstones == "delete":
        _validate_tombstones(options)
    _validate_own_names(options)
    if not options.value.needs_columns:
        _validate_state_columns(options)


def _validate_own_names(options: StateOptions) -> None:
    """Check that no column has the name of one that a state table or its delete memory adds."""
    for name in sorted(column.name for column in options.columns):
        is_mark = options.deletes == "mark" and name.lower() == _DELETED_AT
        if name in STATE_COLUMNS or is_mark:
            raise FieldError(options.place(name), "this column name is reserved for state tables")
    for index, name in enumerate(options.named_ids):
        place = ("table", "id_columns", index)
        if name in options.named_ids[:index]:
            raise FieldError(place, f"{name} is named twice")
        if name.lower() in {MEMORY, *([SEQUENCE] if options.sequence else [])}:
            reason = f"{name} is a column of the delete memory; give the field another name"
            raise FieldError(place, reason)


def _validate_event_table(options: StateOptions, chosen: Collection[str]) -> None:
    """Check the options of a state table of change events."""
    for name in (each for each in ("cdc_field", "tombstones") if each in chosen):
        reason = "not with `transform: flatten_debezium`: the event says what happened"
        raise FieldError(("table", name), reason)
    if options.value.truncate == "apply":
        reason = "not with `mode: upsert`: it would have to delete every key"
        raise FieldError(("value", "truncate"), reason)
    fitting = [*SOURCE_SEQUENCES, EVENT_TIME, *options.named_ids]
    for index, name in enumerate(options.sequence):
        if name not in fitting:
            reason = (
                f"a delete has only the columns of the key, so it lacks {name}; use one of "
                f"{', '.join(fitting)}, or `order: kafka`, then run `frazil merge STREAM --rebuild`"
            )
            raise FieldError(("order", "sequence_by", index), reason)


def _validate_tombstones(options: StateOptions) -> None:
    """Check that the columns of a record without a value are in its Kafka key."""
    in_key = options.key.typed_columns
    absent = [name for name in options.id_columns if name not in in_key]
    if absent:
        reason = (
            f"`delete` needs {', '.join(absent)} in the Kafka key, for example `key: {{convert: "
            f"json, columns: {{{absent[0]}: long!}}}}`, and not in `value.columns`"
        )
        raise FieldError(("table", "tombstones"), reason)
    for index, name in enumerate(options.sequence):
        if name != EVENT_TIME and name not in in_key:
            reason = f"{name} is not in the Kafka key, so a record without a value has none"
            raise FieldError(("order", "sequence_by", index), reason)


def _validate_state_columns(options: StateOptions) -> None:
    """Check keys, sequence and operation of a state table against the stream's columns."""
    known = {column.name: column for column in options.columns}
    ids = options.named_ids
    for index, name in enumerate(ids):
        _validate_column(("table", "id_columns", index), name, known, KEY_TYPES)
    sequence, cdc = options.sequence, options.cdc_field
    for index, name in enumerate(sequence):
        if name != EVENT_TIME and not _is_source_sequence(name, known.get(SOURCE)):
            _validate_column(("order", "sequence_by", index), name, known, _SEQUENCES)
    if cdc is not None and (cdc not in known or known[cdc].type != Primitive("string")):
        raise FieldError(("table", "cdc_field"), f"{cdc!r} is not a string column")
    rest = {column.name for column in options.columns if column.field == REST_FIELD}
    if cdc in rest:
        raise FieldError(("table", "cdc_field"), f"{cdc!r} holds the rest of the fields")
    if cdc in {*ids, *sequence}:
        raise FieldError(("table", "cdc_field"), "must not be a key or a sequence")
    for column in options.columns:
        if column.required and column.name not in {*ids, *sequence, cdc, OP}:
            reason = "must be optional, since a delete may carry only its key: remove `!`"
            raise FieldError(options.place(column.name), reason)


def _is_source_sequence(name: str, source: Column | None) -> bool:
    """Return whether a name is that of a field by which changes can be ordered."""
    if source is None or name not in SOURCE_SEQUENCES or not isinstance(source.type, StructType):
        return False
    types = {f"{SOURCE}.{field.name}": field.type for field in source.type.fields}
    return types.get(name) in {Primitive("int"), Primitive("long")}


def validate_state_layout(state: StateTable, options: StateOptions) -> None:
    """Check that a state table is neither split nor sorted by a column that it does not have.

    Raises:
        FieldError: with the entry.
    """
    entries = [("partition_by", name_source(text)) for text in state.partition_by]
    entries += [("sort_by", name) for name in state.sort_by]
    for index, (option, name) in enumerate(entries):
        if name in options.left_out:
            number = index if option == "partition_by" else index - len(state.partition_by)
            reason = f"{name} is not a column of the state table, only of the change table"
            raise FieldError(("table", option, number), reason)


def validate_state_expiry(column: str, options: StateOptions) -> None:
    """Refuse row expiry where a later change would bring an expired row back, or a part of it.

    Raises:
        FieldError: with the reason.
    """
    reason, sequence = "", options.sequence
    if options.has_events:
        reason = "not with `transform: flatten_debezium`: the state has the rows of its source"
    elif column == options.cdc_field:
        reason = f"{column} is not a column of the state table"
    elif sequence and column != sequence[0]:
        reason = (
            f"must be the first column of `sequence_by`, {sequence[0]}: an older change that comes "
            f"late could have a newer {column} and bring an expired row back"
        )
    if reason:
        raise FieldError(("maintenance", "expire_rows", "column"), reason)


def _validate_column(
    place: tuple[str | int, ...], name: str, known: Mapping[str, Column], fitting: frozenset[str]
) -> None:
    column = known.get(name)
    if column is None:
        fields = [each for each in SOURCE_SEQUENCES if _is_source_sequence(each, known.get(SOURCE))]
        names = sorted([*known, *(fields if "order" in place else ())])
        raise FieldError(place, f"column {name!r} is not among {', '.join(names)}")
    if not isinstance(column.type, Primitive) or column.type.name not in fitting:
        types = ", ".join(sorted(fitting))
        reason = f"{name} is {format_type(column.type)}; these types fit here: {types}"
        if isinstance(column.type, Primitive) and column.type.name in {"binary", "fixed"}:
            reason += "; bytes of JSON or of change events fit a `string`, which has the Base64"
        raise FieldError(place, reason)
    if not column.required:
        raise FieldError(place, f"column {name} must be required: add `!` to its type")
