"""The rows of a stream that are older than its file keeps, by the columns that have their time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    In,
    IsNull,
    LessThan,
    Or,
)
from pyiceberg.expressions.literals import DateLiteral, TimestampLiteral
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from frazil.errors import IncompatibleTableError
from frazil.iceberg.data_files import read_column
from frazil.iceberg.live_files import Flags
from frazil.iceberg.row_changes import RowsToDelete
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, walk_ancestors
from frazil.ledger.state import parse_state
from frazil.schemas.merge import find_earlier_columns
from frazil.streams.models import ExpireRows, Stream
from frazil.streams.timestamps import DAY_MS

_TIMES = (DateType, TimestampType, TimestamptzType)
_TOPIC = f"{keys.KAFKA_COLUMN}.topic"


def decide_cutoff(at_ms: int, keep_days: int) -> datetime:
    """Return the midnight, in UTC, before which a row is too old."""
    today = datetime.fromtimestamp(at_ms // DAY_MS * DAY_MS / 1000, tz=UTC)
    return today - timedelta(days=keep_days)


def limit_times(
    schema: Schema, stream: Stream, name: str, cutoff: datetime
) -> tuple[DateLiteral | TimestampLiteral, pa.Scalar]:
    """Return a cutoff as a value of a column, for Iceberg and for Arrow.

    Raises:
        IncompatibleTableError: the column does not exist, or is not a date or timestamp.
    """
    kind = schema.find_type(name) if name in schema.column_names else None
    micros = int(cutoff.timestamp()) * 1_000_000
    match kind:
        case DateType():
            return DateLiteral(micros // (DAY_MS * 1000)), pa.scalar(cutoff.date())
        case TimestampType():
            return TimestampLiteral(micros), pa.scalar(cutoff.replace(tzinfo=None))
        case TimestamptzType():
            return TimestampLiteral(micros), pa.scalar(cutoff)
        case _:
            raise IncompatibleTableError(
                f"stream {stream.stream}: maintenance.expire_rows names {name}, which "
                f"{f'has type {kind}' if kind else 'is not a column'} in {stream.table.name}",
                f"name a column of type date, timestamp or timestamptz, or {keys.EVENT_TIME}",
            )


@dataclass(frozen=True)
class OwnRows:
    """Which rows belong to a stream: those of its topics, and those of a table that it adopted."""

    topics: tuple[str, ...]
    adopted: bool


def list_own_topics(history: History, stream: Stream) -> OwnRows:
    """Return the topics that the stream reads or has read, and whether it adopted its table."""
    key = keys.state_key(stream.stream)
    with_state = [entry for entry in walk_ancestors(history) if key in entry.summary]
    read = {topic for entry in with_state[:1] for topic in parse_state(entry.summary[key]).offsets}
    adopted = any(entry.summary.get(keys.KIND) == keys.ADOPT for entry in with_state)
    return OwnRows(tuple(sorted(read | set(stream.source.names))), adopted)


@dataclass(frozen=True)
class EarlierTimes:
    """Columns set aside when a column's type changed, newest first; `others` are no times."""

    times: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def find_earlier_times(table: Table, column: str) -> EarlierTimes:
    """Find the columns in which older rows may have the time of a column."""
    schema = table.schema()
    found = find_earlier_columns(table.schemas(), schema, column)
    times = tuple(name for name in found.proven if isinstance(schema.find_type(name), _TIMES))
    others = tuple(name for name in (*found.proven, *found.unproven) if name not in times)
    return EarlierTimes(times, others)


def find_state_times(
    state: Table, names: Mapping[str, str], changes: Table, column: str
) -> tuple[str, EarlierTimes]:
    """Return the names in a state table of a column of its changes, and of its earlier columns.

    `names` are those of the state by those of the change table, whose schema ids the columns set
    aside have in their names in both tables.
    """
    found, present = find_earlier_times(changes, column), {*state.schema().column_names}

    def rename(path: str) -> str:
        name, dot, rest = (path, "", "") if path in names else path.partition(".")
        return names.get(name, name) + dot + rest

    own = rename(column)
    times, others = (
        tuple(name for name in dict.fromkeys(map(rename, part)) if name in present - {own})
        for part in (found.times, found.others)
    )
    return own, EarlierTimes(times, others)


def match_older(
    schema: Schema, stream: Stream, names: Sequence[str], cutoff: datetime
) -> BooleanExpression:
    """Return the condition that the first of some columns that is not null is before a cutoff.

    Raises:
        IncompatibleTableError: a column does not exist, or is not a date or timestamp.
    """
    is_older: BooleanExpression = AlwaysFalse()
    are_null: BooleanExpression = AlwaysTrue()
    for name in names:
        limit, _ = limit_times(schema, stream, name, cutoff)
        is_older = Or(is_older, And(are_null, LessThan(term=name, value=limit)))
        are_null = And(are_null, IsNull(term=name))
    return is_older


def select_expired_rows(
    schema: Schema,
    stream: Stream,
    rule: ExpireRows,
    cutoff: datetime,
    own: OwnRows,
    earlier: Sequence[str] = (),
) -> RowsToDelete:
    """Select the stream's rows before the cutoff; rows of the table's other streams stay.

    Where the column is null, the first of the `earlier` ones that is not null has the time.

    Raises:
        IncompatibleTableError: the column does not exist, or is not a date or timestamp.
    """
    names = (rule.column, *earlier)
    limits = {name: limit_times(schema, stream, name, cutoff)[1] for name in names}

    def flag(rows: pa.Table) -> Flags:
        times = {name: read_column(rows, name) for name in names}
        is_old = pc.coalesce(*(pc.less(times[n], limits[n].cast(times[n].type)) for n in names))
        is_old = pc.and_(_flag_own(rows, own), is_old)
        flags: Flags = pc.fill_null(is_old, False).to_numpy()  # noqa: FBT003 - Arrow's signature
        return flags

    condition = And(_match_own(own), match_older(schema, stream, names, cutoff))
    return RowsToDelete(condition, names, flag)


def select_undated_rows(rule: ExpireRows, own: OwnRows, earlier: EarlierTimes) -> RowsToDelete:
    """Select the stream's rows whose only time was set aside in a column that is no time."""
    times = (rule.column, *earlier.times)

    def flag(rows: pa.Table) -> Flags:
        is_undated = flag_undated(rows, times, earlier.others)
        flags: Flags = pc.and_(_flag_own(rows, own), is_undated).to_numpy()
        return flags

    condition = And(_match_own(own), IsNull(term=rule.column))
    return RowsToDelete(condition, (*times, *earlier.others), flag)


def flag_undated(rows: pa.Table, times: Sequence[str], others: Sequence[str]) -> pa.ChunkedArray:
    """Flag the rows that have a value in a column that is no time, and none in those that are."""
    has_time, has_other = (
        reduce(pc.or_, [pc.is_valid(read_column(rows, name)) for name in names])
        for names in (times, others)
    )
    return pc.and_not(has_other, has_time)


def _match_own(own: OwnRows) -> BooleanExpression:
    """Return the condition for a stream's own rows."""
    is_own: BooleanExpression = In(term=_TOPIC, literals=set(own.topics))
    return Or(is_own, IsNull(term=_TOPIC)) if own.adopted else is_own


def _flag_own(rows: pa.Table, own: OwnRows) -> pa.ChunkedArray:
    topics = read_column(rows, _TOPIC)
    is_own = pc.is_in(topics, value_set=pa.array(own.topics, topics.type))
    return pc.or_(is_own, pc.is_null(topics)) if own.adopted else is_own
