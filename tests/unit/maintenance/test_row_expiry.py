"""Rows that are too old go, whole files where they can, and every audit adds up afterwards."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest
import time_machine
from pyiceberg.exceptions import CommitFailedException
from requests.exceptions import ReadTimeout
from support.lake import Lake, Molds, append, make_stream
from support.log_lake import TOPIC, LogInMemory, Pipeline, Records, coordinate
from support.scripted_catalog import Answer, ScriptedCatalog, landed_then, overtaken_by, refused

from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.recovery_point import keys
from frazil.maintenance.expired_rows import OwnRows, decide_cutoff, select_expired_rows
from frazil.maintenance.row_expiry import expire_rows
from frazil.streams.column_types import FieldError
from frazil.streams.models import ExpireRows
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace

NOW = datetime.now(UTC).replace(hour=12)
COLUMNS = {"id": "long!", "at": "timestamptz", "local": "timestamp", "day": "date"}


@dataclass(frozen=True)
class Dated(Pipeline):
    """Rows of partition 0 are as many days old as their offset; the others have no time."""

    def append(self, records: Records, branch: str = "main", topic: str = TOPIC) -> None:
        table = self.lake.table
        rows = [row_of(topic, p, o) for p, o in records]
        append(self.lake.catalog, table, rows, branch)


def row_of(topic: str, partition: int, offset: int) -> dict[str, object]:
    """Make a row."""
    at = None if partition else NOW - timedelta(days=offset)
    times = {"at": at, "local": at and at.replace(tzinfo=None), "day": at and at.date()}
    return {
        "id": offset,
        **times,
        "_kafka": {**coordinate(topic, partition, offset), "timestamp": at},
    }


@pytest.fixture(autouse=True)
def _same_day() -> Iterator[None]:
    """Set the clock to noon of the day of the rows: a run of the tests may go on after midnight."""
    with time_machine.travel(NOW):
        yield


@pytest.fixture
def lake(molds: Molds, column: str) -> Iterator[Lake]:
    """Begin a stream that keeps rows for four days."""
    rule = {"column": column, "keep_days": 4}
    stream = make_stream(value={"columns": COLUMNS}, maintenance={"expire_rows": rule})
    with molds.begin(stream) as lake:
        yield lake


@pytest.fixture
def column() -> str:
    return "at"


@pytest.fixture
def pipeline(lake: Lake, molds: Molds) -> Pipeline:
    """Two batches: days 0 to 5 with some of no time, then days 6 to 9."""
    return Dated(lake, molds.cast(lake, fill))


def fill(lake: Lake) -> LogInMemory:
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    made = Dated(lake, LogInMemory())
    made.log.produce(0, *range(6))
    made.log.produce(1, 0, 1)
    made.ingest(letters=[(0, 1)])
    made.log.produce(0, *range(6, 10))
    made.ingest()
    return made.log


@pytest.mark.parametrize("column", ["at", "local", "day", "_kafka.timestamp"])
def test_f11_rows_older_than_the_limit_go_and_those_without_a_time_stay(
    pipeline: Pipeline, work: Workspace
) -> None:
    point = pipeline.lake.point

    report = expire_rows(work)

    assert report.rows == 5
    assert pipeline.lake.coordinates() == [(0, 0), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)]
    assert pipeline.lake.point == point
    summary = pipeline.lake.history.entries[report.snapshot_ids[0]].summary
    assert (summary[keys.KIND], summary[keys.ROWS_DELETED]) == ("expire-rows", "5")
    assert summary[keys.COORDINATES] == '{"orders":{"0":[[5,10]]}}'
    assert summary[keys.BY] == "data-platform@example.org"
    assert summary[keys.REASON].startswith("maintenance.expire_rows: ")
    answer = pipeline.audit()
    assert (answer.findings, "5 rows erased or expired" in answer.facts_line) == ((), True)


def test_a_file_of_old_rows_alone_is_dropped_and_not_written_again(
    pipeline: Pipeline, work: Workspace
) -> None:
    expire_rows(work)

    head = pipeline.lake.table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    told = head.summary.additional_properties
    assert (told["deleted-data-files"], told["added-data-files"]) == ("2", "1")
    assert (told["deleted-records"], told["added-records"]) == ("11", "6")


def test_where_nothing_is_too_old_nothing_is_committed(pipeline: Pipeline, work: Workspace) -> None:
    expire_rows(work)
    before = pipeline.lake.history.head

    again = expire_rows(Workspace(work.stream, work.directory, "run-2"))

    assert (again.rows, again.snapshot_ids) == (0, ())
    assert pipeline.lake.history.head == before


def test_a_dry_run_counts_and_writes_nothing(pipeline: Pipeline, work: Workspace) -> None:
    before = pipeline.lake.table.metadata_location

    report = expire_rows(work, dry_run=True)

    assert report.rows == 5
    assert "would expire 5 rows" in report.text
    assert pipeline.lake.table.metadata_location == before


def test_rows_of_an_older_partition_spec_expire(pipeline: Pipeline, work: Workspace) -> None:
    with pipeline.lake.table.update_spec() as update:
        update.add_identity("day")

    assert expire_rows(work).rows == 5

    assert pipeline.audit().findings == ()


@pytest.mark.parametrize(
    "answer",
    [
        landed_then(CommitFailedException("409")),
        landed_then(ReadTimeout()),
        refused(CommitFailedException("409")),
    ],
)
def test_whatever_the_catalog_answers_rows_expire_once(
    pipeline: Pipeline, work: Workspace, answer: Answer
) -> None:
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    catalog.script = [answer]

    report = expire_rows(work)

    kinds = [e.summary.get(keys.KIND) for e in pipeline.lake.history.entries.values()]
    assert (report.rows, kinds.count(keys.EXPIRE_ROWS)) == (5, 1)
    assert pipeline.audit().findings == ()


def test_a_batch_that_overtakes_keeps_its_rows(pipeline: Pipeline, work: Workspace) -> None:
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    pipeline.log.produce(1, 2, 3)
    catalog.script = [overtaken_by(pipeline.ingest)]

    assert expire_rows(work).rows == 5

    assert {(1, 2), (1, 3)} <= set(pipeline.lake.coordinates())
    assert pipeline.audit().findings == ()


def test_more_rows_than_one_snapshot_can_list_go_in_several(
    pipeline: Pipeline, work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.maintenance.row_deletion.MAX_RUNS", 1)

    report = expire_rows(work)

    assert (report.rows, len(report.snapshot_ids)) == (5, 2)
    assert pipeline.audit().findings == ()


@pytest.mark.parametrize(
    ("day", "cutoff"),
    [(0.0, date(1969, 12, 28)), (10.99, date(1970, 1, 7)), (11.0, date(1970, 1, 8))],
)
def test_a_day_ends_at_midnight(day: float, cutoff: date) -> None:
    assert decide_cutoff(int(day * DAY_MS), 4).date() == cutoff


@pytest.mark.parametrize("column", ["id", "nobody", "_kafka.offset"])
def test_a_rule_by_a_column_without_a_time_is_refused(column: str) -> None:
    rule = {"column": column, "keep_days": 4}

    with pytest.raises((FieldError, ValueError), match="is not a time column"):
        make_stream(value={"columns": COLUMNS}, maintenance={"expire_rows": rule})


def test_rows_of_every_topic_of_the_stream_go_and_none_of_others(lake: Lake) -> None:
    source = {"topics": ["orders", "sales"]}
    stream = make_stream(value={"columns": COLUMNS}, source=source)
    rule = ExpireRows(column="at", keep_days=4)
    schema = lake.table.schema()

    rows = [row_of(topic, 0, days) for topic in ("orders", "sales", "others") for days in (1, 9)]
    came = {**row_of("", 0, 9), "_kafka": None}
    given = pa.Table.from_pylist([*rows, came], optional(schema.as_arrow()))
    cutoff = NOW - timedelta(days=4)

    own = OwnRows(("orders", "sales"), adopted=False)
    wanted = select_expired_rows(schema, stream, rule, cutoff, own)
    adopted = select_expired_rows(schema, stream, rule, cutoff, replace(own, adopted=True))

    assert wanted.flag(given).tolist() == [False, True, False, True, False, False, False]
    assert adopted.flag(given).tolist() == [False, True, False, True, False, False, True]
    lake.table.append(pa.Table.from_pylist(rows, schema.as_arrow()))
    assert lake.table.scan(row_filter=wanted.condition).count() == 2


def optional(schema: pa.Schema) -> pa.Schema:
    """Let `_kafka` be null, as in a table that was adopted."""
    place = schema.get_field_index("_kafka")
    return schema.set(place, schema.field(place).with_nullable(nullable=True))
