"""Another writer's table is taken over in one commit, on exactly what was looked at."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from faults.imagined_kafka import find_faults
from pyiceberg.exceptions import CommitFailedException
from requests.exceptions import ReadTimeout
from support.foreign_tables import BEGAN_MS, VALUES, WRITERS, ForeignTable, records, without
from support.lake import Lake, make_stream, make_topic
from support.scripted_catalog import ScriptedCatalog, landed_then, overtaken_by, refused

from frazil.errors import (
    IncompatibleTableError,
    NotAdoptableError,
    NothingToDecideError,
    StreamFileError,
    TargetError,
    WriterActiveError,
)
from frazil.iceberg.row_changes import RowSearch
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.kafka.cluster import KafkaLog, TopicFacts
from frazil.ledger.authors import Author
from frazil.ledger.coordinates import Offsets
from frazil.ledger.foreign_snapshots import count_foreign_snapshots
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import find_adopted, keys
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.migration.adoption import adopt_table
from frazil.observability.audit import audit_table
from frazil.observability.status import locate_offset
from frazil.recovery.range_overwrite import select_ranges
from frazil.recovery.replay_rules import require_not_adopted
from frazil.recovery.rollback_rules import decide_rollback
from frazil.workspace import Workspace

JANE = Author("jane@example.org", "replaces the Kafka Connect sink")


@dataclass(frozen=True)
class ImaginedTopic:
    """A topic with every offset up to its ends; each record's timestamp is that of the rows."""

    ends: tuple[int, ...]

    def fetch_topic(self, topic: str, _isolation: str) -> TopicFacts:
        return make_topic(self.ends, topic)

    def fetch_topic_settings(self, _topic: str) -> Mapping[str, str]:
        return {"cleanup.policy": "delete"}

    def fetch_delivered(
        self, _topic: str, ranges: Mapping[int, OffsetRange], _isolation: str
    ) -> Mapping[int, Offsets]:
        return {partition: np.arange(span.start, span.end) for partition, span in ranges.items()}

    def fetch_first_timestamps(
        self, _topic: str, starts: Mapping[int, int], _isolation: str
    ) -> Mapping[int, int | None]:
        return {partition: BEGAN_MS + start for partition, start in starts.items()}


@pytest.fixture
def taken(lake: Lake, work: Workspace) -> Workspace:
    """Open a stream whose table another writer has filled with 5 and 4 records of 9 and 9."""
    ForeignTable(lake.catalog, "legacy.orders").create().write(*records(5)).write(*records(0, 4))
    return open_legacy(work)


def open_legacy(work: Workspace) -> Workspace:
    """Open the stream again, as another process would."""
    stream = make_stream(table={"name": "legacy.orders"})
    opened = replace(work, stream=stream)
    opened.__dict__["kafka"] = cast("KafkaLog", ImaginedTopic((9, 9)))
    return opened


def lake_of(work: Workspace, lake: Lake) -> Lake:
    return Lake(lake.folder, work.stream)


def script(work: Workspace) -> ScriptedCatalog:
    return cast("ScriptedCatalog", work.store.catalog)


def test_reading_goes_on_behind_the_other_writers_rows(taken: Workspace, lake: Lake) -> None:
    decision = adopt_table(taken, JANE)

    point = lake_of(taken, lake).point
    assert point is not None
    assert (point.snapshot_id, point.state.epoch) == (decision.snapshot_id, 0)
    assert point.state.offsets == {"orders": (5, 4)}


def test_the_snapshot_says_who_why_and_from_whom(taken: Workspace, lake: Lake) -> None:
    adopt_table(taken, JANE)

    history = lake_of(taken, lake).history
    summary = history.entries[history.head or 0].summary
    assert (summary[keys.KIND], summary[keys.BY]) == (keys.ADOPT, JANE.by)
    assert json.loads(summary[keys.ADOPTED])["writer"] == "Kafka Connect"
    assert count_foreign_snapshots(history) == 0, "what came with the table is no surprise"


def test_our_column_comes_beside_the_other_writers(taken: Workspace, lake: Lake) -> None:
    adopt_table(taken, JANE)

    table = lake_of(taken, lake).table
    rows = table.scan().to_arrow().to_pylist()
    assert table.schema().find_field("_kafka").optional
    assert {row["_kafka"] for row in rows} == {None}
    assert {row["_kafka_metadata_topic"] for row in rows} == {"orders"}
    assert keys.columns_key("orders") in table.properties


def test_a_dry_run_writes_nothing(taken: Workspace) -> None:
    before = taken.store.load("legacy.orders").metadata_location

    decision = adopt_table(taken, None)

    assert taken.store.load("legacy.orders").metadata_location == before
    assert "9 rows of orders" in decision.text
    assert "9 offsets to read in Kafka" in decision.text
    assert "reading continues at orders:0:5, orders:1:4" in decision.text


def test_the_next_rows_are_published_beside_those_that_came(taken: Workspace, lake: Lake) -> None:
    adopt_table(taken, JANE)
    own = lake_of(taken, lake)

    own.ingest(9, 9)

    assert own.coordinates() == [(0, o) for o in range(5, 9)] + [(1, o) for o in range(4, 9)]
    assert own.table.scan().count() == 18


@pytest.mark.parametrize("error", [ReadTimeout("no answer"), KeyboardInterrupt()])
def test_an_adoption_whose_answer_was_lost_is_written_once(
    taken: Workspace, lake: Lake, error: BaseException
) -> None:
    script(taken).script = [landed_then(error)]
    try:
        adopt_table(taken, JANE)
    except KeyboardInterrupt:
        adopt_table(open_legacy(taken), JANE)

    kinds = [e.summary.get(keys.KIND) for e in lake_of(taken, lake).history.entries.values()]
    assert kinds.count(keys.ADOPT) == 1


def test_an_adoption_that_did_not_land_is_tried_again(taken: Workspace, lake: Lake) -> None:
    script(taken).script = [refused(CommitFailedException("409"))]

    adopt_table(taken, JANE)

    point = lake_of(taken, lake).point
    assert point is not None


def test_the_same_adoption_twice_is_one(taken: Workspace, lake: Lake) -> None:
    first = adopt_table(taken, JANE)
    lake_of(taken, lake).ingest(9, 9)

    assert adopt_table(open_legacy(taken), JANE).snapshot_id == first.snapshot_id


def test_a_writer_that_commits_in_the_same_moment_is_found(taken: Workspace, lake: Lake) -> None:
    other = ForeignTable(lake.catalog, "legacy.orders")
    script(taken).script = [overtaken_by(lambda: other.write(*records(6, start=5)))]

    with pytest.raises(WriterActiveError, match="still commits"):
        adopt_table(taken, JANE)

    assert lake_of(taken, lake).point is None
    assert "_kafka" not in other.table.schema().column_names
    assert adopt_table(open_legacy(taken), JANE).text.endswith("orders:0:6, orders:1:4")


def test_a_writer_that_commits_while_its_rows_are_read_is_found(
    taken: Workspace, lake: Lake
) -> None:
    other = ForeignTable(lake.catalog, "legacy.orders")

    class Slow(ImaginedTopic):
        def fetch_topic_settings(self, topic: str) -> Mapping[str, str]:
            other.write(*records(6, start=5))
            return super().fetch_topic_settings(topic)

    taken.__dict__["kafka"] = cast("KafkaLog", Slow((9, 9)))

    with pytest.raises(WriterActiveError):
        adopt_table(taken, None)


def test_a_table_that_is_frazils_already_is_refused(taken: Workspace) -> None:
    adopt_table(taken, JANE)

    with pytest.raises(NothingToDecideError, match="Frazil already writes"):
        adopt_table(open_legacy(taken), Author("joe@example.org", "once more"))


def test_a_table_that_another_stream_fills_from_this_topic_is_refused(
    lake: Lake, work: Workspace
) -> None:
    other = replace(work, stream=make_stream("twin", source={"topic": "orders"}))
    other.__dict__["kafka"] = cast("KafkaLog", ImaginedTopic((9, 9)))

    with pytest.raises(StreamFileError, match="filled from topic orders by stream orders"):
        adopt_table(other, None)
    assert lake.point is not None


def test_columns_that_do_not_fit_are_named(taken: Workspace) -> None:
    value = {"columns": {"id": "string!", "price": "double"}}
    stream = make_stream(table={"name": "legacy.orders"}, value=value)
    other = replace(taken, stream=stream)
    other.__dict__["kafka"] = taken.kafka

    with pytest.raises(IncompatibleTableError, match="id is long, not string; column price is mis"):
        adopt_table(other, None)


def test_a_run_on_a_table_of_another_writer_names_the_command(taken: Workspace) -> None:
    from frazil.ingest.bootstrap import require_matching_schema  # noqa: PLC0415 - what a run calls first

    with pytest.raises(IncompatibleTableError, match="frazil adopt orders"):
        require_matching_schema(taken.stream, taken.store.load("legacy.orders").schema())


def test_a_record_that_the_other_writer_lost_is_named(taken: Workspace, lake: Lake) -> None:
    stream = make_stream(table={"name": "legacy.holes"})
    rows = without(records(5, 4), 0, 2)
    ForeignTable(lake.catalog, "legacy.holes", WRITERS["Redpanda"]).create().write(*rows)
    holes = replace(taken, stream=stream)

    class Compacted(ImaginedTopic):
        def fetch_topic_settings(self, _topic: str) -> Mapping[str, str]:
            return {"cleanup.policy": "compact"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("frazil.kafka.consumer.OffsetConsumer.fetch_delivered", lambda *_: {})
        holes.__dict__["kafka"] = cast("KafkaLog", Compacted((9, 9)))
        with pytest.raises(NotAdoptableError, match="orders:0:2"):
            adopt_table(holes, None)

        adopt_table(holes, JANE, accept_holes=True)

    told = lake_of(holes, lake).history.entries[lake_of(holes, lake).history.head or 0].summary
    assert json.loads(told[keys.ADOPTED])["holes"] == {"lost": 0, "unknown": 1, "empty": 0}


def test_a_required_column_of_the_other_writer_that_nobody_fills_is_refused(
    taken: Workspace, lake: Lake
) -> None:
    table = ForeignTable(lake.catalog, "legacy.orders").table
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.update_column("_kafka_metadata_offset", required=True)

    with pytest.raises(IncompatibleTableError, match="_kafka_metadata_offset is required"):
        adopt_table(taken, None)


def test_both_audits_find_an_adopted_table_in_order(taken: Workspace, lake: Lake) -> None:
    adopt_table(taken, JANE)
    own = lake_of(taken, lake)
    own.ingest(9, 9)

    audit = audit_table(own.store, own.stream, ImaginedTopic((9, 9)))

    assert find_faults(own, 9, 9) == ()
    assert audit.findings == ()
    assert "9 adopted rows not checked" in audit.facts_line
    assert audit.counts.rows == 9


ABOVE_NINE = (
    "rows that have no coordinates or are below the adoption: 10; rows of the adopted table: 9"
)


def add_row(own: Lake, **kafka: object) -> None:
    """Let somebody append a row, with a coordinate or without one."""
    row = {"id": 6, "name": "late", "_kafka": kafka or None}
    own.table.append(pa.Table.from_pylist([row], schema=own.table.schema().as_arrow()))


@pytest.mark.parametrize(
    ("kafka", "text"),
    [
        ({"topic": "orders", "partition": 0, "offset": 6}, "1 record more than once: orders:0:6"),
        (
            {"topic": "orders", "partition": 0, "offset": 2},
            ABOVE_NINE,
        ),
        (
            {},
            ABOVE_NINE,
        ),
    ],
    ids=["read since", "below the adoption", "without a coordinate"],
)
def test_an_audit_finds_a_row_too_many(
    taken: Workspace, lake: Lake, kafka: dict[str, object], text: str
) -> None:
    adopt_table(taken, JANE)
    own = lake_of(taken, lake)
    own.ingest(9, 9)
    add_row(own, **kafka)

    audit = audit_table(own.store, own.stream, ImaginedTopic((9, 9)))

    assert [finding.text for finding in audit.findings] == [text]
    assert "E6" in {finding.invariant for finding in find_faults(own, 9, 9)}


def test_an_empty_table_is_taken_over_from_its_first_record(lake: Lake, work: Workspace) -> None:
    ForeignTable(lake.catalog, "legacy.orders").create()
    empty = open_legacy(work)

    adopt_table(empty, JANE)

    point = lake_of(empty, lake).point
    assert point is not None
    assert point.state.offsets == {"orders": (0, 0)}


def test_a_partition_field_that_new_rows_leave_null_is_named(taken: Workspace, lake: Lake) -> None:
    table = ForeignTable(lake.catalog, "legacy.orders").table
    with table.update_spec() as spec:
        spec.add_field("_kafka_metadata_timestamp", "bucket[4]")

    text = adopt_table(taken, None).text

    assert "fields bucket[4](_kafka_metadata_timestamp) are null in new rows" in text


def test_what_came_with_the_table_can_be_neither_replayed_nor_rolled_back(
    taken: Workspace, lake: Lake
) -> None:
    adopt_table(taken, JANE)
    own = lake_of(taken, lake)
    own.ingest(9, 9)
    history = own.history
    foreign_head = min(history.entries.values(), key=lambda e: e.committed_at_ms).snapshot_id

    with pytest.raises(TargetError, match=r"orders:0:4-6"):
        require_not_adopted(
            "orders", {"orders": {0: OffsetRange(4, 6)}}, find_adopted(history, "orders")
        )
    with pytest.raises(TargetError, match="is older than the stream"):
        decide_rollback(history, "orders", foreign_head)
    assert "below the adoption" in locate_offset(taken, "orders", 0, 3).reason
    assert locate_offset(taken, "orders", 0, 5).found
    for topic, partition in (("nobody", 0), ("orders", 99)):
        reason = locate_offset(taken, topic, partition, 5).reason
        assert reason == (
            "unknown partition; topics of the stream (number of partitions): orders (2)"
        )


def test_a_replay_finds_its_rows_in_a_file_with_rows_that_came(
    taken: Workspace, lake: Lake
) -> None:
    """Compaction puts both kinds into one file; the rows that came are survivors."""
    adopt_table(taken, JANE)
    own = lake_of(taken, lake)
    own.ingest(9, 9)
    own.table.overwrite(own.table.scan().to_arrow())

    search = RowSearch(select_ranges({"orders": {0: OffsetRange(5, 7)}}))
    (affected,) = search.find(own.table)

    assert affected.offsets["orders", 0].tolist() == [5, 6]
    assert affected.offsets["orders", 0].dtype == np.int64
    assert int(affected.is_removed.sum()) == 2
    rest = search.replace(own.table, [affected]).added
    assert sum(file.record_count for file in rest) == 16


@pytest.mark.parametrize("transform", ["", "identity"])
@pytest.mark.parametrize("key", ["user.id=3", "the.user.id=3", "the.user.a.b=3"])
def test_a_key_whose_name_has_a_dot_is_erased(
    lake: Lake, work: Workspace, key: str, transform: str
) -> None:
    parts = pa.struct([pa.field("id", pa.int64()), pa.field("a.b", pa.string())])
    values = (*VALUES, pa.field("user.id", pa.int64()), pa.field("the.user", parts))
    legacy = ForeignTable(lake.catalog, "legacy.orders", values=values).create()
    if transform:
        with legacy.table.update_spec() as spec:
            spec.add_field("user.id", transform, "part")
    for row in records(5):
        number = row["offset"]
        legacy.write({**row, "user.id": number, "the.user": {"id": number, "a.b": str(number)}})
    taken = open_legacy(work)
    adopt_table(taken, JANE)
    ensure_dead_letters_table(taken.store, "legacy.orders")
    request = ErasureRequest(stream="orders", keys=(key,), by="j", reason="r", dry_run=False)

    done = erase(taken, plan_erasure(taken, request), request)

    assert done.rows == 1
    assert sorted(legacy.table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 4]
