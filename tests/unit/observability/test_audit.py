"""The audit holds where the guarantees hold, and names the record where they do not."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from support.lake import Lake, Molds, make_stream
from support.log_lake import TOPIC, LogInMemory, Pipeline, Records, state_of

from frazil.errors import (
    ForeignRollbackError,
    MissingTableError,
    TopicRecreatedError,
    UnknownTopicError,
)
from frazil.iceberg.branches import create_branch, name_branch
from frazil.iceberg.fast_forward import FastForward, fast_forward_main
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.kafka.cluster import TopicFacts
from frazil.ledger.coordinates import encode_coordinates
from frazil.ledger.recovery_point import keys
from frazil.observability.audit import audit_table
from frazil.observability.audit_messages import find_records


@pytest.fixture
def pipeline(lake: Lake, molds: Molds) -> Pipeline:
    """Two batches: ten records with a hole, a dead letter and a skipped one, then three more."""
    return Pipeline(lake, molds.cast(lake, fill))


def fill(lake: Lake) -> LogInMemory:
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    made = Pipeline(lake, LogInMemory())
    made.log.produce(0, 0, 1, 2, 4, 5, 6)
    made.log.produce(1, 0, 1, 2, 3)
    made.ingest(letters=[(0, 2)], skipped=[(1, 3)])
    made.log.produce(0, 7, 9)
    made.log.produce(1, 4)
    made.ingest()
    return made.log


def test_rows_letters_and_skipped_records_together_are_what_kafka_delivered(
    pipeline: Pipeline,
) -> None:
    answer = pipeline.audit()

    assert answer.verdict == "holds"
    assert answer.findings == ()
    assert answer.counts.records_delivered == 13
    assert (answer.counts.rows, answer.counts.dead_letters) == (11, 1)
    assert answer.counts.rows_skipped == 1


Break = Callable[[Pipeline], None]


@pytest.mark.parametrize(
    ("harm", "named", "words"),
    [
        pytest.param(
            lambda it: it.delete(0, 5),
            {(TOPIC, 0, 5)},
            "1 record of orders:0 missing: orders:0:5",
            id="a row that somebody deleted",
        ),
        pytest.param(
            lambda it: it.append([(0, 5), (1, 1)]),
            {(TOPIC, 0, 5), (TOPIC, 1, 1)},
            "1 record more than once",
            id="rows that somebody appended again",
        ),
        pytest.param(
            lambda it: it.append([(0, 2)]),
            {(TOPIC, 0, 2)},
            "1 record more than once",
            id="a row beside the dead letter of the same record",
        ),
        pytest.param(
            lambda it: it.append([(1, 40)]),
            {(TOPIC, 1, 40)},
            "1 record in no published range",
            id="a row above the recovery point",
        ),
        pytest.param(
            lambda it: it.append([(0, 3)]),
            {(TOPIC, 0, 3)},
            "1 record that Kafka does not deliver",
            id="a row of an aborted transaction",
        ),
        pytest.param(
            lambda it: it.append([(0, 1)], topic="payments"),
            {("payments", 0, 1)},
            "1 record of a topic that no stream has read",
            id="a row of another topic",
        ),
    ],
)
def test_i5_a_broken_table_is_named_by_record(
    pipeline: Pipeline, harm: Break, named: set[tuple[str, int, int]], words: str
) -> None:
    harm(pipeline)

    answer = pipeline.audit()

    assert answer.verdict == "broken"
    assert {finding.invariant for finding in answer.findings} == {"I1"}
    assert {c for finding in answer.findings for c in finding.coordinates} == named
    assert words in answer.findings[0].text
    assert answer.counts.foreign_snapshots == 1


def test_a_batch_that_lost_rows_before_it_was_published_is_named(pipeline: Pipeline) -> None:
    pipeline.log.produce(0, 10, 11, 12)
    pipeline.ingest(lost=[(0, 11)])

    answer = pipeline.audit()

    assert [finding.coordinates for finding in answer.findings] == [((TOPIC, 0, 11),)]


def test_more_records_are_missing_than_were_skipped(pipeline: Pipeline) -> None:
    pipeline.delete(1, 0)

    answer = pipeline.audit()

    assert [finding.coordinates for finding in answer.findings] == [((TOPIC, 1, 0), (TOPIC, 1, 3))]
    assert "2 records of orders:1 missing (1 of them skipped)" in answer.findings[0].text


def test_skipped_records_that_aged_out_do_not_excuse_missing_ones_elsewhere(
    pipeline: Pipeline,
) -> None:
    pipeline.log.age_out(1, 5)
    pipeline.delete(0, 5)

    answer = pipeline.audit()

    assert [finding.coordinates for finding in answer.findings] == [((TOPIC, 0, 5),)]


def test_letters_of_an_abandoned_attempt_do_not_count(pipeline: Pipeline) -> None:
    pipeline.append_letters([(0, 2), (0, 4)], "frazil_orders_0_00000000001deadbeef")

    answer = pipeline.audit()

    assert answer.verdict == "holds"
    assert answer.counts.dead_letters == 1


def test_a_dead_letter_that_is_there_twice_is_a_doubled_record(pipeline: Pipeline) -> None:
    letters = pipeline.lake.store.load("demo.orders__dead_letters").scan().to_arrow()
    pipeline.append_letters([(0, 2)], letters["attempt"][0].as_py())

    answer = pipeline.audit()

    assert [finding.coordinates for finding in answer.findings] == [((TOPIC, 0, 2),)]


def redrive(
    pipeline: Pipeline,
    listed: Records,
    rows: Records | None = None,
    told: Mapping[str, str] | None = None,
) -> None:
    """Seal rows as dead letters that came back; `rows` are the listed ones unless given."""
    lake, name = pipeline.lake, pipeline.lake.stream.table.name
    branch = name_branch(TOPIC, 1)
    create_branch(lake.store, name, branch)
    pipeline.append(listed if rows is None else rows, branch=branch)
    coordinates = {(TOPIC, p): np.array([o for q, o in listed if q == p]) for p in (0, 1)}
    summary = {
        keys.KIND: keys.REDRIVE,
        keys.STREAM: TOPIC,
        keys.BATCH_ID: branch,
        keys.COORDINATES: encode_coordinates(coordinates),
        **dict.fromkeys((keys.ROWS_READ, keys.ROWS_WRITTEN), str(len([*listed]))),
        **(told or {}),
    }
    staged_id = lake.table.metadata.refs[branch].snapshot_id
    fast_forward_main(TableView(lake.store, name), FastForward(branch, staged_id, summary))


def test_a_letter_that_came_back_does_not_count_and_its_row_does(pipeline: Pipeline) -> None:
    redrive(pipeline, [(0, 2)])

    answer = pipeline.audit()

    assert answer.findings == ()
    assert answer.counts.dead_letters == 0
    assert answer.counts.foreign_snapshots == 0


@pytest.mark.parametrize(
    ("listed", "rows", "found"),
    [
        ([(0, 2)], [(0, 2), (0, 2)], (TOPIC, 0, 2)),
        ([(0, 2)], [], (TOPIC, 0, 2)),
        ([], [(0, 2)], (TOPIC, 0, 2)),
        ([(0, 2), (0, 4)], None, (TOPIC, 0, 4)),
    ],
    ids=["its row twice", "no row", "a row that is not listed", "one that was no letter"],
)
def test_a_redrive_that_is_not_what_it_lists_is_named_by_record(
    pipeline: Pipeline, listed: list[tuple[int, int]], rows: Records | None, found: object
) -> None:
    redrive(pipeline, listed, rows)

    answer = pipeline.audit()

    assert found in [c for finding in answer.findings for c in finding.coordinates]


def test_a_letter_that_came_back_twice_is_a_doubled_record(pipeline: Pipeline) -> None:
    redrive(pipeline, [(0, 2)])
    redrive(pipeline, [(0, 2)])

    answer = pipeline.audit()

    assert [finding.coordinates for finding in answer.findings] == [((TOPIC, 0, 2),)]


def test_what_aged_out_of_kafka_is_said_and_not_blamed(pipeline: Pipeline) -> None:
    pipeline.log.age_out(0, 5)

    answer = pipeline.audit()

    assert answer.verdict == "holds"
    assert answer.checked_from == {"orders-0": 5, "orders-1": 0}
    assert answer.counts.offsets_aged == 5
    assert "below orders:0:5 only the ledger's counts were checked" in answer.facts_line


class Forgotten(LogInMemory):
    """A topic that the cluster no longer has."""

    def fetch_topic(self, topic: str, isolation: str) -> TopicFacts:  # noqa: ARG002 - likewise
        raise UnknownTopicError(f"no topic {topic}", "create it")


def test_a_topic_that_left_the_file_and_then_kafka_is_judged_by_the_ledgers_counts(
    pipeline: Pipeline,
) -> None:
    lake = pipeline.lake
    other = make_stream(source={"topics": ["sales"]})

    answer = audit_table(lake.store, other, Forgotten())

    assert (answer.verdict, answer.findings) == ("holds", ())
    assert answer.counts.offsets_aged > 0
    with pytest.raises(UnknownTopicError):
        audit_table(lake.store, lake.stream, Forgotten())
    pipeline.delete(0, 1)
    assert audit_table(lake.store, other, Forgotten()).verdict == "broken"


def test_a_row_missing_below_kafkas_earliest_offset_is_found_by_the_ledgers_counts(
    pipeline: Pipeline,
) -> None:
    pipeline.log.age_out(0, 7)
    pipeline.delete(0, 5)

    answer = pipeline.audit()

    assert "wrote 8 rows, the table has 7 of its ranges" in answer.findings[0].text


def test_records_that_compaction_took_from_the_topic_are_not_blamed(pipeline: Pipeline) -> None:
    pipeline.log.cleanup_policy = "compact"
    pipeline.log.offsets[0] = [4, 9]

    assert pipeline.audit().verdict == "holds"


def recreate(pipeline: Pipeline) -> tuple[Pipeline, int]:
    """Let the log begin again with a letter at an old one's offset; give the gap that says so."""
    renewed = Pipeline(pipeline.lake, LogInMemory())
    lake, gap = renewed.lake, {TOPIC: state_of(epoch=3, offsets=(0, 0))}
    gap_id = lake.mark(keys.GAP, gap, lake.table, lake.history)
    renewed.log.produce(0, 0, 1, 2)
    renewed.ingest(letters=[(0, 2)])
    return renewed, gap_id


def test_a_letter_of_a_log_that_ended_still_counts_and_is_missed(lake: Lake) -> None:
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    letters = lake.store.load("demo.orders__dead_letters")
    pipeline = Pipeline(lake, LogInMemory())
    pipeline.log.produce(0, 0, 1, 2, 3)
    pipeline.ingest(letters=[(0, 2)])
    old_attempt = letters.refresh().scan().to_arrow()["attempt"][0].as_py()
    renewed, _ = recreate(pipeline)

    holds = renewed.audit()
    letters.refresh().delete(f"attempt == '{old_attempt}'")
    broken = renewed.audit()

    assert (holds.findings, holds.counts.dead_letters) == ((), 2)
    assert [finding.text for finding in broken.findings] == [
        "orders:0: batches of several topic incarnations read 2 bad records, 1 dead letter exist"
    ]


@pytest.mark.parametrize("order", [1, -1], ids=["today's first", "the old one first"])
def test_letters_of_two_logs_at_one_offset_come_back_apart(pipeline: Pipeline, order: int) -> None:
    renewed, gap_id = recreate(pipeline)
    first, second = ({}, {keys.LETTERS_BEFORE: str(gap_id)})[::order]

    redrive(renewed, [(0, 2)], told=first)
    once = renewed.audit()
    redrive(renewed, [(0, 2)], told=second)
    twice = renewed.audit()

    assert (once.findings, once.counts.dead_letters) == ((), 1)
    assert (twice.findings, twice.counts.dead_letters) == ((), 0)


def test_records_read_after_a_recorded_truncation_may_share_coordinates(
    pipeline: Pipeline,
) -> None:
    renewed = Pipeline(pipeline.lake, LogInMemory())
    gap = {TOPIC: state_of(epoch=3, offsets=(0, 0))}
    renewed.lake.mark(keys.GAP, gap, renewed.lake.table, renewed.lake.history)
    renewed.log.produce(0, 0, 1, 2)
    renewed.ingest()

    holds = renewed.audit()
    renewed.append([(0, 1)])
    broken = renewed.audit()

    assert holds.findings == ()
    assert [finding.coordinates for finding in broken.findings] == [((TOPIC, 0, 1),)]


def test_a_rollback_by_others_halts_the_audit(pipeline: Pipeline) -> None:
    table = pipeline.lake.table
    head = table.current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id is not None
    table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()

    with pytest.raises(ForeignRollbackError):
        pipeline.audit()


def test_a_topic_created_again_cannot_be_compared(pipeline: Pipeline) -> None:
    with pytest.raises(TopicRecreatedError):
        pipeline.audit(LogInMemory(topic_id="id-2"))


def test_a_stream_that_has_not_begun_has_nothing_to_audit(lake: Lake) -> None:
    other = make_stream("payments")

    with pytest.raises(MissingTableError, match="frazil run payments"):
        audit_table(lake.store, other, LogInMemory())


def test_a_finding_shows_twenty_records_and_counts_the_rest() -> None:
    finding = find_records("I1", "25 records missing", TOPIC, 0, range(25))

    assert len(finding.coordinates) == 20
    assert finding.text.endswith("orders:0:19 and 5 more")
