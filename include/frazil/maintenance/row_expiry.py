"""Row expiry: delete rows older than the stream file keeps, listed in a snapshot; offsets stay.

The cutoff is a midnight in UTC, so a file is rewritten at most once a day. A record that arrives
too old is ingested as usual and expires with the next run.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, In, IsNull, LessThan, Or
from pyiceberg.expressions.literals import DateLiteral, TimestampLiteral
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from frazil.errors import IncompatibleTableError
from frazil.iceberg.data_files import read_column
from frazil.iceberg.ledger_archive import load_with_history
from frazil.iceberg.live_files import Flags
from frazil.iceberg.row_changes import RowsToDelete, count_rows, find_rows
from frazil.ledger import keys
from frazil.ledger.deletions import Deletion
from frazil.ledger.recovery_point import History, walk_ancestors
from frazil.ledger.state import parse_state
from frazil.maintenance.messages import RowExpiryReport
from frazil.maintenance.row_deletion import delete_rows, find_no_dead_letters
from frazil.maintenance.tables import (
    note_maintenance,
    now_ms,
    read_base_table,
    summarize_table,
)
from frazil.streams.models import ExpireRows, Stream
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace


def expire_rows(work: Workspace, *, dry_run: bool = False) -> RowExpiryReport:
    """Delete the stream's rows that are older than `maintenance.expire_rows` keeps.

    Raises:
        TableError: a stream on the table is halted.
        IncompatibleTableError: the column is not a date or timestamp.
        TargetError: a file with expired rows is not a Parquet file.
        CommitContentionError, UnavailableError: run again.
    """
    stream, before = work.stream, summarize_table(work)
    rule = stream.maintenance.expire_rows
    empty = RowExpiryReport(stream=stream.stream, dry_run=dry_run, before=before, after=before)
    if rule is None:
        return empty
    cutoff = decide_cutoff(now_ms(), rule.keep_days)
    limits = {"column": rule.column, "before_at": cutoff}
    if read_base_table(work) is None:
        return empty.model_copy(update=limits)
    table, history = load_with_history(work.store, stream.table.name)
    own = list_own_topics(history, stream)
    expired = select_expired_rows(table.schema(), stream, rule, cutoff, own)
    if dry_run:
        rows = count_rows(find_rows(table, expired))
        return empty.model_copy(update={**limits, "rows": rows})
    properties = {
        keys.TARGET: f"{rule.column} before {cutoff.isoformat()}",
        keys.BY: stream.owner,
        keys.REASON: f"maintenance.expire_rows: {rule.column}, {rule.keep_days} days",
    }
    deletion = Deletion(keys.EXPIRE_ROWS, stream.stream, work.run_id, properties)
    landed = delete_rows(work, expired, deletion, find_no_dead_letters)
    results = {
        "rows": sum(int(each.entry.summary[keys.ROWS_DELETED]) for each in landed),
        "snapshot_ids": tuple(each.entry.snapshot_id for each in landed),
        "after": summarize_table(work),
    }
    return note_maintenance(work, "expire_rows", empty.model_copy(update={**limits, **results}))


def decide_cutoff(at_ms: int, keep_days: int) -> datetime:
    """Return the midnight, in UTC, before which a row is too old."""
    today = datetime.fromtimestamp(at_ms // DAY_MS * DAY_MS / 1000, tz=UTC)
    return today - timedelta(days=keep_days)


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


def select_expired_rows(
    schema: Schema, stream: Stream, rule: ExpireRows, cutoff: datetime, own: OwnRows
) -> RowsToDelete:
    """Select the stream's rows before the cutoff; rows of the table's other streams stay.

    Raises:
        IncompatibleTableError: the column does not exist, or is not a date or timestamp.
    """
    name, topic = rule.column, f"{keys.KAFKA_COLUMN}.topic"
    kind = schema.find_type(name) if name in schema.column_names else None
    micros = int(cutoff.timestamp()) * 1_000_000
    limit: DateLiteral | TimestampLiteral
    match kind:
        case DateType():
            limit, scalar = DateLiteral(micros // (DAY_MS * 1000)), pa.scalar(cutoff.date())
        case TimestampType():
            limit, scalar = TimestampLiteral(micros), pa.scalar(cutoff.replace(tzinfo=None))
        case TimestamptzType():
            limit, scalar = TimestampLiteral(micros), pa.scalar(cutoff)
        case _:
            raise IncompatibleTableError(
                f"stream {stream.stream}: maintenance.expire_rows names {name}, which "
                f"{f'has type {kind}' if kind else 'is not a column'} in {stream.table.name}",
                f"name a column of type date, timestamp or timestamptz, or {keys.EVENT_TIME}",
            )

    def flag(rows: pa.Table) -> Flags:
        topics = read_column(rows, topic)
        times = read_column(rows, name)
        is_own = pc.is_in(topics, value_set=pa.array(own.topics, topics.type))
        if own.adopted:
            is_own = pc.or_(is_own, pc.is_null(topics))
        is_old = pc.and_(is_own, pc.less(times, scalar.cast(times.type)))
        flags: Flags = pc.fill_null(is_old, False).to_numpy()  # noqa: FBT003 - Arrow's signature
        return flags

    is_own: BooleanExpression = In(term=topic, literals=set(own.topics))
    if own.adopted:
        is_own = Or(is_own, IsNull(term=topic))
    return RowsToDelete(And(is_own, LessThan(term=name, value=limit)), (name,), flag)
