"""Rows that are too old: taken out by maintenance, each listed, and no offset moves.

A day ends at midnight in UTC, so a file is rewritten at most once a day while its rows get too old,
and a file that only such rows fill goes whole. A record that comes late enough to be too old is
ingested as any other, and goes with the next run.
"""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, In, LessThan
from pyiceberg.expressions.literals import DateLiteral, TimestampLiteral
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, TimestampType, TimestamptzType

from frazil import keys
from frazil.deleting import Wanted, delete_rows, find_no_letters, find_rows, read_column
from frazil.deletions import Deletion
from frazil.errors import IncompatibleTableError
from frazil.expiry import DAY_MS
from frazil.letters import Flags
from frazil.maintained_tables import look_at_base, note_maintenance, now_ms, summarize_table
from frazil.rewriting import count_rows
from frazil.streams import ExpireRows, Stream
from frazil.table_reports import RowExpiryReport
from frazil.workspace import Workspace


def expire_rows(work: Workspace, *, dry_run: bool = False) -> RowExpiryReport:
    """Take out the stream's rows that are older than its file says; none where it says nothing.

    Raises:
        TableError: a stream on the table halts.
        IncompatibleTableError: the table's column is no time.
        TargetError: a file with rows that stay is of an older partition spec.
        CommitContentionError, UnavailableError: run again.
    """
    stream, before = work.stream, summarize_table(work)
    rule = stream.maintenance.expire_rows
    empty = RowExpiryReport(stream=stream.stream, dry_run=dry_run, before=before, after=before)
    if rule is None:
        return empty
    cutoff = decide_cutoff(now_ms(), rule.keep_days)
    told = {"column": rule.column, "before_at": cutoff}
    if look_at_base(work) is None:
        return empty.model_copy(update=told)
    table = work.store.load(stream.table.name)
    wanted = find_too_old(table.schema(), stream, rule, cutoff)
    if dry_run:
        return empty.model_copy(update={**told, "rows": count_rows(find_rows(table, wanted))})
    words = {keys.TARGET: f"{rule.column} before {cutoff.isoformat()}"}
    deletion = Deletion(keys.EXPIRE_ROWS, stream.stream, work.run_id, words)
    landed = delete_rows(work, wanted, deletion, find_no_letters)
    found = {
        "rows": sum(int(each.entry.summary[keys.ROWS_DELETED]) for each in landed),
        "snapshot_ids": tuple(each.entry.snapshot_id for each in landed),
        "after": summarize_table(work),
    }
    return note_maintenance(work, "expire_rows", empty.model_copy(update={**told, **found}))


def decide_cutoff(at_ms: int, keep_days: int) -> datetime:
    """Give the midnight, in UTC, before which a row is too old."""
    today = datetime.fromtimestamp(at_ms // DAY_MS * DAY_MS / 1000, tz=UTC)
    return today - timedelta(days=keep_days)


def find_too_old(schema: Schema, stream: Stream, rule: ExpireRows, cutoff: datetime) -> Wanted:
    """Say which of the stream's rows are too old; other streams of the table keep their own.

    Raises:
        IncompatibleTableError: the column is not there, or no time.
    """
    name, own_topics = rule.column, stream.source.names
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
                f"stream {stream.stream}: maintenance.expire_rows names {name}, which is "
                f"{kind or 'no column'} in {stream.table.name}",
                f"name a date, timestamp or timestamptz there, or {keys.EVENT_TIME}",
            )

    def flag(rows: pa.Table) -> Flags:
        topics = read_column(rows, f"{keys.KAFKA_COLUMN}.topic")
        times = read_column(rows, name)
        is_own = pc.is_in(topics, value_set=pa.array(own_topics, topics.type))
        is_old = pc.and_(is_own, pc.less(times, scalar.cast(times.type)))
        flags: Flags = pc.fill_null(is_old, False).to_numpy()  # noqa: FBT003 - Arrow's signature
        return flags

    own = In(term=f"{keys.KAFKA_COLUMN}.topic", literals=set(own_topics))
    return Wanted(And(own, LessThan(term=name, value=limit)), (name,), flag)
