"""What left on purpose is not missed, and whoever forges such a snapshot is found."""

import json

import pytest
from support.lake import Lake, Molds
from support.log_lake import LogInMemory, Pipeline

from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.recovery_point import keys


@pytest.fixture
def pipeline(lake: Lake, molds: Molds) -> Pipeline:
    """One batch of ten records, of which one is a letter and one was skipped."""
    return Pipeline(lake, molds.cast(lake, fill))


def fill(lake: Lake) -> LogInMemory:
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    made = Pipeline(lake, LogInMemory())
    made.log.produce(0, *range(10))
    made.ingest(letters=[(0, 2)], skipped=[(0, 7)])
    return made.log


def take(pipeline: Pipeline, *offsets: int, listed: tuple[int, ...], **told: str) -> None:
    """Delete rows of partition 0 as PyIceberg does, under a summary that may lie."""
    summary = {
        keys.KIND: keys.ERASE,
        keys.STREAM: "orders",
        keys.COORDINATES: json.dumps({"orders": {"0": [*listed]}}),
        keys.ROWS_DELETED: str(len(offsets)),
        keys.BY: "jane@example.org",
        keys.REASON: "request 12",
        **{f"frazil.{name}": text for name, text in told.items()},
    }
    places = " OR ".join(f"_kafka.offset == {offset}" for offset in offsets)
    pipeline.lake.table.delete(places, snapshot_properties=summary)


@pytest.mark.parametrize("kind", [keys.ERASE, keys.EXPIRE_ROWS])
def test_rows_that_left_on_purpose_are_not_missed(pipeline: Pipeline, kind: str) -> None:
    take(pipeline, 3, 5, listed=(3, 5), kind=kind)
    pipeline.log.produce(1, 0, 1)
    pipeline.ingest()

    answer = pipeline.audit()

    assert (answer.findings, answer.counts.rows, answer.counts.foreign_snapshots) == ((), 8, 0)


def test_rows_that_left_before_kafka_forgot_them_still_add_up(pipeline: Pipeline) -> None:
    take(pipeline, 3, 5, listed=(3, 5))
    pipeline.log.age_out(0, 8)

    assert pipeline.audit().findings == ()


@pytest.mark.parametrize(
    ("taken", "listed", "told", "words"),
    [
        ((3,), (3, 4), {"rows-deleted": "1"}, "claims 1 rows, lists 2 of them and removed 1"),
        ((3,), (4,), {}, "deleted on purpose but still there: orders:0:4"),
        ((3,), (4,), {}, "missing (1 of them skipped): orders:0:3"),
        ((3, 4), (3,), {}, "missing (1 of them skipped): orders:0:4"),
        ((3,), (3,), {"rows-deleted": "2"}, "claims 2 rows, lists 1 of them and removed 1"),
        ((3,), (30,), {}, "in no published range: orders:0:30"),
        ((3,), (3,), {"by": ""}, "has no author or no reason"),
        ((3,), (3,), {"state.orders": '{"v":1}'}, "state"),
    ],
)
def test_a_forged_erasure_is_found(
    pipeline: Pipeline,
    taken: tuple[int, ...],
    listed: tuple[int, ...],
    told: dict[str, str],
    words: str,
) -> None:
    if "state.orders" in told:
        point = pipeline.lake.point
        assert point is not None
        told = {
            "state.orders": pipeline.lake.history.entries[point.snapshot_id].summary[
                keys.state_key("orders")
            ]
        }

    take(pipeline, *taken, listed=listed, **told)

    assert words in " ".join(finding.text for finding in pipeline.audit().findings)
