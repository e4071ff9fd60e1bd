"""What a scorecard is made of: Kafka, the table and its file are asked, nothing is written."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from frazil.access import Access, read_access
from frazil.derived_columns import with_columns
from frazil.errors import MissingTableError
from frazil.expiry import HOUR_MS
from frazil.file_and_table import list_differences
from frazil.freshness import FreshnessReport, judge_freshness
from frazil.ledger import History, walk_ancestors
from frazil.letter_report import LetterReport, report_letters
from frazil.maintained_tables import retention_window, summarize_table
from frazil.other_writers import count_foreign
from frazil.publishing import load_with_history
from frazil.streams import Stream
from frazil.table_reports import TableReport
from frazil.timeline import Event
from frazil.timeline_table import find_drills
from frazil.watch import gather_facts
from frazil.workspace import Workspace

DRILL_DAYS = 90


@dataclass(frozen=True)
class Surroundings:
    """What stands around the rows: others' snapshots, the layout, and how far back it reads.

    `kept_hours` is the age of the oldest snapshot of main that is still there; None where all are.
    """

    foreign_snapshots: int = 0
    layout: tuple[str, ...] = ()
    kept_hours: int | None = None


@dataclass(frozen=True)
class ReadinessFacts:
    """What a scorecard is made of; `put_aside` are schema changes that wait for an answer.

    `unnamed` are fields of the newest batch that no column names.
    """

    stream: Stream
    freshness: FreshnessReport
    access: tuple[Access, ...]
    is_compacted: bool
    rollback_hours: int
    expire_hours: int
    table: TableReport
    letters: LetterReport | None
    drills: Mapping[str, Event]
    around: Surroundings
    put_aside: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()


def gather_readiness(work: Workspace) -> ReadinessFacts:
    """Ask everything that the lines need.

    Raises:
        FrazilError: the catalog or the broker cannot be asked.
    """
    facts, window, now = gather_facts(work), retention_window(work), datetime.now(UTC)
    policies = [
        work.kafka.fetch_topic_settings(topic).get("cleanup.policy", "delete")
        for topic in work.stream.source.names
    ]
    try:
        letters = report_letters(work)
    except MissingTableError:
        letters = None
    return ReadinessFacts(
        stream=work.stream,
        freshness=judge_freshness(facts, work.stream.freshness, now),
        access=read_access(work),
        is_compacted=any("compact" in policy for policy in policies),
        rollback_hours=window.rollback_ms // HOUR_MS,
        expire_hours=window.expire_ms // HOUR_MS,
        table=summarize_table(work),
        letters=letters,
        drills=find_drills(work, now - timedelta(days=DRILL_DAYS)),
        around=_read_surroundings(work),
        put_aside=facts.put_aside,
        unnamed=facts.unnamed,
    )


def _read_surroundings(work: Workspace) -> Surroundings:
    try:
        table, history = load_with_history(work.store, work.stream.table.name)
    except MissingTableError:
        return Surroundings()
    return Surroundings(
        foreign_snapshots=count_foreign(history),
        layout=list_differences(table, with_columns(work).stream),
        kept_hours=find_kept_hours(history, int(time.time() * 1000)),
    )


def find_kept_hours(history: History, now_ms: int) -> int | None:
    """Find how far back main can be read, whoever expired the rest; None where nothing is gone."""
    line = list(walk_ancestors(history))
    kept = [entry for entry in line if entry.snapshot_id in history.entries]
    if len(kept) == len(line):
        return None
    return (now_ms - kept[-1].committed_at_ms) // HOUR_MS
