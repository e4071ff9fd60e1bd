"""A table that another tool replaced: `recover` reads again what main lacks, and audits see it."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from support.lake import Lake, append
from support.log_lake import LogInMemory, Pipeline

from frazil.errors import HistoryCutError
from frazil.iceberg import commits
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.authors import Author
from frazil.ledger.recovery_point import keys
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.recovery.halt_resolution import reingest
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.rollback import plan_recovery, recover
from frazil.workspace import Workspace

JANE = Author("jane@example.org", "the table was replaced")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.1)


@pytest.fixture
def pipeline(lake: Lake, work: Workspace) -> Pipeline:
    """Publish three batches: ten records with a dead letter, then two of five."""
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    pipeline = Pipeline(lake, LogInMemory())
    vars(work)["kafka"] = pipeline.log
    pipeline.log.produce(0, *range(10))
    pipeline.ingest(letters=[(0, 4)])
    pipeline.log.produce(1, *range(5))
    pipeline.ingest()
    pipeline.log.produce(0, *range(10, 15))
    pipeline.ingest()
    return pipeline


def replace_table(lake: Lake, rows: pa.Table) -> None:
    """Replace the table's rows as CREATE OR REPLACE does: the new snapshot has no parent."""
    table = lake.table
    commits.commit(lake.catalog, table, [], [RemoveSnapshotRefUpdate(ref_name="main")])
    append(lake.catalog, lake.table, rows)
    with pytest.raises(HistoryCutError) as caught:
        _ = lake.point
    assert "--to-snapshot" in caught.value.next_step


def select(lake: Lake, condition: str) -> pa.Table:
    return lake.table.scan(row_filter=condition).to_arrow()


NONE, ALL = "id < 0", "id >= 0"
HEAD_OF_0 = "_kafka.partition == 0 AND _kafka.offset < 10"
FIRST_TWO = "_kafka.partition == 1 OR _kafka.offset < 10"
HALF = "_kafka.offset == 1 OR _kafka.offset == 12"


def test_a_table_replaced_by_no_rows_is_read_again_from_its_beginning(
    pipeline: Pipeline, work: Workspace
) -> None:
    lake = pipeline.lake
    replace_table(lake, select(lake, NONE))
    preview = reingest(work, None).text
    assert "main lacks rows; read again: orders:0:0-15, orders:1:0-5" in preview

    reingest(work, JANE)

    assert lake.plan(*pipeline.log.ends).ranges == {"orders": {0: (0, 15), 1: (0, 5)}}
    pipeline.ingest(letters=[(0, 4)])
    assert len(lake.coordinates()) == 19
    assert pipeline.audit().findings == ()


@pytest.mark.parametrize(
    ("kept", "again"),
    [
        (FIRST_TWO, {0: (10, 15)}),
        (HEAD_OF_0, {0: (10, 15), 1: (0, 5)}),
        (ALL, {}),
    ],
)
def test_only_what_main_lacks_is_read_again(
    pipeline: Pipeline, work: Workspace, kept: str, again: dict[int, tuple[int, int]]
) -> None:
    lake = pipeline.lake
    replace_table(lake, select(lake, kept))

    reingest(work, JANE)

    if again:
        assert lake.plan(*pipeline.log.ends).ranges == {"orders": again}
        pipeline.ingest()
    assert len(lake.coordinates()) == 19
    assert pipeline.audit().findings == ()


def test_rows_missing_between_others_are_named_for_a_replay_and_break_the_audit(
    pipeline: Pipeline, work: Workspace
) -> None:
    lake = pipeline.lake
    replace_table(lake, select(lake, HALF))

    text = reingest(work, JANE).text

    ranges = "orders:0:0-15, orders:1:0-5"
    assert f"main lacks rows of {ranges}: `frazil replay orders --offsets '{ranges}'`" in text
    report = pipeline.audit()
    assert report.verdict == "broken"
    assert sum("missing" in finding.text for finding in report.findings) == 3


def test_what_kafka_no_longer_has_is_named_as_lost(pipeline: Pipeline, work: Workspace) -> None:
    replace_table(pipeline.lake, select(pipeline.lake, NONE))
    pipeline.log.age_out(0, 12)

    text = reingest(work, JANE).text

    assert "Kafka no longer has orders:0:0-12: these rows are lost" in text


def test_a_rollback_recorded_by_an_earlier_release_hides_no_lost_row_from_the_audit(
    pipeline: Pipeline,
) -> None:
    lake = pipeline.lake
    point = lake.point
    assert point is not None
    archive_all_entries(lake.store, lake.history)
    replace_table(lake, select(lake, NONE))

    table, history = lake.table, lake.history
    lake.mark(keys.REWIND, {"orders": replace(point.state, epoch=9)}, table, history)

    report = pipeline.audit()
    assert report.verdict == "broken"
    assert sum("missing" in finding.text for finding in report.findings) == 3


def test_an_erased_row_is_not_missing(pipeline: Pipeline, work: Workspace) -> None:
    request = ErasureRequest(
        stream="orders", keys=("id=12",), by=JANE.by, reason="request 12", dry_run=False
    )
    erase(work, plan_erasure(work, request), request)
    lake = pipeline.lake
    replace_table(lake, select(lake, ALL))

    reingest(work, JANE)

    assert lake.plan(16, 5).ranges == {"orders": {0: (15, 16)}}
    assert pipeline.audit().findings == ()


def test_the_snapshot_that_the_halt_names_brings_every_row_back(
    pipeline: Pipeline, work: Workspace
) -> None:
    lake = pipeline.lake
    head, rows = lake.history.head, len(lake.coordinates())
    replace_table(lake, select(lake, NONE))
    request = RecoverRequest(
        stream="orders", to_snapshot=head, by=JANE.by, reason=JANE.reason, dry_run=False
    )

    recover(work, plan_recovery(work, request))

    assert len(lake.coordinates()) == rows
    assert pipeline.audit().findings == ()


def drop_column(lake: Lake) -> None:
    table = lake.table
    rows = table.scan().to_arrow()
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("_kafka")
    replace_table(lake, rows.drop(["_kafka"]))


@pytest.mark.parametrize("change", [drop_column])
def test_rows_without_coordinates_are_not_read_twice(
    pipeline: Pipeline, work: Workspace, change: Callable[[Lake], None]
) -> None:
    change(pipeline.lake)

    with pytest.raises(HistoryCutError, match="without the column _kafka"):
        reingest(work, JANE)
