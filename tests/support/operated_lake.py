"""A filled table and the operations that change it, each through the product's own function."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

import pytest
from support.catalog_loads import Loads, count_loads
from support.foreign_tables import BEGAN_MS, ForeignTable, records
from support.lake import Lake, Molds, append, make_stream
from support.log_lake import TOPIC, LogInMemory, Pipeline, Records, coordinate
from support.scripted_catalog import ScriptedCatalog
from support.staged_offsets import stage_offsets

from frazil.iceberg import commits
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.kafka.cluster import KafkaLog
from frazil.ledger import keys
from frazil.ledger.authors import Author
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest, TableRequest, TableResult
from frazil.maintenance.orphans import remove_orphans
from frazil.maintenance.row_expiry import expire_rows
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.messages import Message
from frazil.migration.adoption import adopt_table
from frazil.recovery.decisions import accept_gap
from frazil.recovery.messages import (
    DeadLetterChoice,
    MarkResult,
    RecoverRequest,
    RedriveRequest,
    RedriveResult,
)
from frazil.recovery.redrive import redrive_dead_letters
from frazil.recovery.rollback import plan_recovery, recover
from frazil.spark.engine import Engine
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace

TABLE, LETTERS, LEGACY = "demo.orders", "demo.orders__dead_letters", "legacy.orders"
LEDGER = keys.LEDGER_TABLE
AHEAD_SECONDS = 10 * DAY_MS / 1000
JANE = Author("jane@example.org", "request 12")


@dataclass
class Jobs:
    """Change a table by PyIceberg where a job of Spark would."""

    lake: Lake
    loads: Loads

    def run_job(self, job: str, request: Message, _result: type[Message]) -> Message:
        """Run a job; its own loads are not counted."""
        before = Counter(self.loads.by_table)
        done = self._run(job, request)
        self.loads.by_table = before
        return done

    def _run(self, job: str, request: Message) -> Message:
        if isinstance(request, RedriveRequest):
            return RedriveResult(**stage_offsets(self.lake, request).model_dump())
        if not isinstance(request, TableRequest):
            return MarkResult(table=LETTERS)
        paths: tuple[str, ...] = ()
        if job == "remove_orphans" and request.table == TABLE:
            paths = ("file:///nowhere/orphan.parquet",)
        if job == "compact_table":
            self.rewrite(request.table)
        for snapshot_id in request.snapshot_ids:
            table = self.lake.store.load(request.table)
            table.maintenance.expire_snapshots().by_id(snapshot_id).commit()
        counts = ("files_before", "files_after", "bytes_before", "bytes_after")
        return TableResult(counts=dict.fromkeys(counts, 0), paths=paths)

    def rewrite(self, name: str) -> None:
        """Commit a snapshot with the same rows."""
        table = self.lake.store.load(name)
        head = table.current_snapshot()
        assert head is not None
        added = commits.build_manifest_rewrite(table, {})
        moved = commits.set_branch("main", added.snapshot.snapshot_id)
        required = commits.require_head(table, "main", head.snapshot_id)
        commits.commit(self.lake.catalog, table, required, [added, moved])


class TimedLog(LogInMemory):
    """A log that knows the timestamps of another writer's rows."""

    def fetch_topics(self, topics: list[str], isolation: str) -> tuple[object, ...]:
        """Describe each topic."""
        return tuple(self.fetch_topic(topic, isolation) for topic in topics)

    def fetch_first_timestamps(
        self, _topic: str, starts: Mapping[int, int], _isolation: str
    ) -> Mapping[int, int | None]:
        """Answer as `KafkaLog` does."""
        return {partition: BEGAN_MS + start for partition, start in starts.items()}


@dataclass(frozen=True)
class Dated(Pipeline):
    """Old rows, and dead letters with a key."""

    def append(self, records: Records, branch: str = "main", topic: str = TOPIC) -> None:
        """Append rows of the year 2020."""
        at = datetime(2020, 1, 1, tzinfo=UTC)
        rows = [{"id": o, "at": at, "_kafka": coordinate(topic, p, o)} for p, o in records]
        append(self.lake.catalog, self.lake.table, rows, branch)

    def append_letters(self, records: Records, attempt: str) -> None:
        """Append dead letters of alice."""
        letters = self.lake.store.load(LETTERS)
        kafka = [coordinate(TOPIC, p, o) | {"key": b"alice"} for p, o in records]
        rows = [{"attempt": attempt, "stream": "orders", "_kafka": each} for each in kafka]
        append(self.lake.catalog, letters, rows)


@dataclass
class Site:
    """A table with rows and a dead letter, and a count of its loads."""

    work: Workspace
    lake: Lake
    log: LogInMemory
    loads: Loads
    noted: dict[str, dict[str, int]] = field(default_factory=dict)

    def open(self) -> Workspace:
        """Open the stream as a process of its own does."""
        work = replace(self.work)
        work.__dict__["kafka"] = cast("KafkaLog", self.log)
        work.__dict__["engine"] = cast("Engine", Jobs(self.lake, self.loads))
        return work

    def note(self, step: str) -> None:
        """Note how often a step has loaded each table."""
        self.noted[step] = self.loads.take()


STREAM = make_stream(
    value={"columns": {"id": "long!", "name": "string", "at": "timestamptz"}},
    errors={"tolerance": "quarantine", "max_bad_ratio": 0.9},
    maintenance={"expire_rows": {"column": "at", "keep_days": 4}},
)
"""A stream whose rows may be deleted by key and by age."""


def open_site(lake: Lake, molds: Molds, work: Workspace, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Fill the table from a log, ten days ago: four batches and a dead letter."""
    log = molds.cast(lake, fill)
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + AHEAD_SECONDS)
    return Site(work, lake, log, count_loads(monkeypatch, ScriptedCatalog))


def fill(lake: Lake) -> TimedLog:
    ensure_dead_letters_table(lake.store, TABLE)
    log = TimedLog()
    for start in range(0, 12, 3):
        ingest(lake, log, range(start, start + 3), letters=[(0, 1)] if start == 0 else [])
    return log


def ingest(lake: Lake, log: LogInMemory, offsets: Iterable[int], letters: Records = ()) -> None:
    """Publish a batch, and archive its entry."""
    log.produce(0, *offsets)
    Dated(lake, log).ingest(letters)
    archive_all_entries(lake.store, lake.history)


def compact(site: Site) -> None:
    report = compact_table(site.open(), rewrite_all=True)
    assert [table.rewritten for table in report.tables] == [("files",)] * 3


def expire(site: Site) -> None:
    for offset in (12, 13):
        ingest(site.lake, site.log, [offset])
    site.loads.take()
    assert all(table.expired_ids for table in expire_snapshots(site.open()).tables)


def clean(site: Site) -> None:
    assert [table.files for table in remove_orphans(site.open()).tables] == [1, 0, 0]


def expire_old(site: Site) -> None:
    assert expire_rows(site.open()).rows == 11


def erase_keys(site: Site) -> None:
    who = {"by": JANE.by, "reason": JANE.reason}
    request = ErasureRequest(
        stream="orders", keys=("id=5", "_kafka.key=alice"), dry_run=False, **who
    )
    plan = plan_erasure(site.open(), request)
    site.note("plan")
    done = erase(site.open(), plan, request)
    assert (done.rows, done.dead_letters) == (1, 1)


def roll_back(site: Site) -> None:
    target = site.lake.table.metadata.snapshots[-2].snapshot_id
    request = RecoverRequest(
        stream="orders", to_snapshot=target, by=JANE.by, reason=JANE.reason, dry_run=False
    )
    site.loads.take()
    plan = plan_recovery(site.open(), request)
    site.note("plan")
    assert recover(site.open(), plan).kind == keys.REWIND


def redrive(site: Site) -> None:
    choice = DeadLetterChoice(stream="orders", dry_run=False)
    assert redrive_dead_letters(site.open(), choice).rows == 1


def adopt(site: Site) -> None:
    ForeignTable(site.lake.catalog, LEGACY).create().write(*records(5, 0))
    site.work = replace(
        site.work, stream=make_stream("legacy", source={"topic": TOPIC}, table={"name": LEGACY})
    )
    site.loads.take()
    adopt_table(site.open(), None)
    site.note("plan")
    assert adopt_table(site.open(), JANE).snapshot_id is not None


def lose(site: Site) -> None:
    site.log.age_out(0, 14)
    assert accept_gap(site.open(), JANE).snapshot_id is not None
