"""A stream goes on with its topic's copy on a second, real cluster, and comes back (D6)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer, TopicPartition
from conftest import Lab, Stack, good_values
from pyiceberg.catalog import load_catalog
from support.forked import Run

from faults.audit_values import AuditReport
from faults.auditor import audit_table
from faults.batches import Batches
from faults.brokers import copy_records, create_topic, own_broker, read_from
from frazil.errors import ClusterChangedError
from frazil.ingest.checking import check_batch
from frazil.ingest.pipeline import publish_staged
from frazil.ingest.staging import stage_batch
from frazil.migration.cluster_move import move_cluster, plan_move
from frazil.migration.messages import MoveRequest

pytestmark = pytest.mark.stack
PERSON = ("--by", "tests@example.org", "--reason", "mirror promoted", "--no-dry-run")


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Run a second cluster, once for this file."""
    with own_broker(tmp_path_factory.mktemp("second") / "home") as stack:
        yield stack


@dataclass
class Pair:
    """One stream and two clusters; `here` is the one that its connection leads to."""

    lab: Lab
    first: Stack
    second: Stack
    here: Stack

    def frazil(self, *words: str, **extra: str) -> Run:
        """Run a command with the connections as they are; `kafka_old` leads to the first one."""
        return self.lab.frazil(*words, **self.connections, **extra)

    @property
    def connections(self) -> dict[str, str]:
        return {
            "AIRFLOW_CONN_KAFKA_DEFAULT": connect(self.here),
            "AIRFLOW_CONN_KAFKA_OLD": connect(self.first),
        }

    def must_do(self, *words: str, **extra: str) -> Run:
        done = self.frazil(*words, **extra)
        assert done.code == 0, done.out + done.err
        return done

    def produce(self, count: int, start: int) -> None:
        Lab(self.here, self.lab.folder, self.lab.stream).produce(good_values(count, start))

    def drain(self) -> None:
        while "next_offsets" not in self.must_do("run", self.lab.stream, "--json").out:
            pass

    def move(self, *words: str, **extra: str) -> Run:
        return self.frazil("move-cluster", self.lab.stream, *words, **extra)

    def ids(self) -> list[int]:
        """List what every row says it is."""
        catalog = load_catalog("lake", **self.lab.stack.catalog_properties)
        rows = catalog.load_table(self.lab.table).scan(selected_fields=("id",)).to_arrow()
        catalog.close()
        return sorted(rows["id"].to_pylist())

    def assert_exactly_once(self, count: int) -> None:
        """Let both audits recompute the table from the cluster that is read now."""
        assert self.ids() == list(range(count))
        own = self.frazil("audit", self.lab.stream)
        assert own.code == 0, own.out + own.err
        assert self.judge().findings == ()

    def judge(self) -> AuditReport:
        """Let the independent auditor recompute the table."""
        properties, lab = self.lab.stack.catalog_properties, self.lab
        return audit_table(properties, "lake", lab.table, self.here.bootstrap, lab.stream)


def connect(stack: Stack) -> str:
    return json.dumps({"extra": {"bootstrap.servers": stack.bootstrap}})


def begin(lab: Lab, second: Stack, **config: str) -> Pair:
    """Read 60 good records and four bad ones, and let ten more come; the copy is empty."""
    lab.create_topic()
    made = Pair(lab, lab.stack, second, lab.stack)
    made.produce(60, 0)
    lab.produce([b"no json"] * 4)
    made.drain()
    made.produce(10, 60)
    create_topic(second, lab.topic, **config)
    return made


@pytest.fixture
def pair(lab: Lab, second: Stack) -> Pair:
    """Copy all of it at other offsets, and point the connection to the copy."""
    made = begin(lab, second)
    shift(second, lab.topic, 7, 11)
    copy_records(lab.stack, second, lab.topic)
    made.here = second
    return made


def produce_at(stack: Stack, topic: str, timestamp_ms: int, numbers: range) -> None:
    """Send records without a key, all of one instant, to partition 0."""
    producer = Producer({"bootstrap.servers": stack.bootstrap})
    for value in good_values(len(numbers), numbers.start):
        producer.produce(topic, value=value, partition=0, timestamp=timestamp_ms)
    assert producer.flush(30) == 0


def shift(stack: Stack, topic: str, *counts: int) -> None:
    """Let records come and go, so that the next ones have other offsets."""
    strange = Lab(stack, None, topic)  # type: ignore[arg-type]
    for number, count in enumerate(counts):
        strange.produce([None] * (count * len(counts)), partitions=len(counts))
        admin = strange.admin
        place = TopicPartition(topic, number, count)
        admin.delete_records([place])[place].result(15)


def kinds_of(pair: Pair) -> list[str]:
    snapshots = pair.must_do("snapshots", pair.lab.stream, "--json").json
    assert isinstance(snapshots, list)
    return [snapshot["kind"] for snapshot in snapshots]


@pytest.mark.core
def test_d6_a_stream_goes_on_with_its_copy_and_comes_back_without_a_record_lost_or_doubled(
    pair: Pair,
) -> None:
    topic, stream = pair.lab.topic, pair.lab.stream
    refused = pair.frazil("run", stream)
    assert (refused.code, "frazil move-cluster" in refused.err) == (1, True)
    shown = pair.move("--json").json
    assert isinstance(shown, dict)
    assert [(p["old_next"], p["new_next"]) for p in shown["partitions"]] == [(32, 50), (32, 50)]

    assert pair.move(*PERSON).code == 0
    pair.drain()
    pair.produce(20, 70)
    pair.drain()
    pair.assert_exactly_once(90)

    copy_records(pair.second, pair.first, topic, lambda m: (m.offset() or 0) >= 55)
    pair.here = pair.first
    assert pair.move("--by", "tests@example.org", "--reason", "back", "--no-dry-run").code == 0
    pair.produce(6, 90)
    pair.drain()
    pair.assert_exactly_once(96)
    assert kinds_of(pair).count("move") == 2


def test_d6_after_a_move_nobody_takes_old_offsets_for_new_ones(pair: Pair) -> None:
    topic, stream = pair.lab.topic, pair.lab.stream
    first_batch = pair.must_do("snapshots", stream, "--json").json
    assert isinstance(first_batch, list)
    pair.must_do("move-cluster", stream, *PERSON)
    pair.drain()

    where = pair.must_do("where", stream, "--partition", "0", "--offset", "10")
    old = pair.frazil("replay", stream, "--offsets", f"{topic}:0:10-20")
    below = pair.frazil("replay", stream, "--offsets", f"{topic}:0:40-52")
    filled = pair.frazil("backfill", stream, "--offsets", f"{topic}:0:20-30")
    back = pair.frazil("recover", stream, "--to-snapshot", str(first_batch[0]["snapshot_id"]))
    again = pair.frazil("replay", stream, "--offsets", f"{topic}:0:50-54", "--no-dry-run")

    refusals = [(done.code, "Target" in done.err) for done in (old, below, filled, back)]
    assert refusals == [(1, True)] * 4, [d.err for d in (old, below, filled, back)]
    assert "moved to another cluster" in old.err
    assert "which the stream left by snapshot" in where.out
    assert "newer than the move" in back.err
    assert again.code == 0, again.err
    pair.assert_exactly_once(70)


@pytest.mark.storm(1)
@pytest.mark.parametrize("failpoint", ["decide.before-commit", "decide.after-commit"])
def test_d6_a_kill_while_moving_moves_once(pair: Pair, failpoint: str) -> None:
    assert pair.move(*PERSON, FRAZIL_FAILPOINT=failpoint).code == -9

    for _ in range(2):
        assert pair.move(*PERSON).code == 0

    assert kinds_of(pair).count("move") == 1
    pair.drain()
    pair.assert_exactly_once(70)


def test_d6_a_copy_that_lost_a_record_is_refused_and_a_given_offset_may_not_lose_or_double(
    lab: Lab, second: Stack
) -> None:
    pair = begin(lab, second)
    copy_records(lab.stack, second, lab.topic, lambda m: m.key() != b"59")
    pair.here = second

    seen = [
        pair.move(),
        pair.move("--old-connection", "kafka_old"),
        pair.move("--next", f"{lab.topic}:1:29"),
        pair.move("--next", f"{lab.topic}:1:33"),
    ]
    done = pair.move("--next", f"{lab.topic}:1:31", *PERSON)

    assert [(run.code, "NotMovable" in run.err) for run in seen] == [(1, True)] * 4
    assert all("Next:" in run.err for run in seen)
    assert done.code == 0, done.err
    pair.drain()
    assert pair.ids() == list(range(70))


def test_d6_records_of_one_instant_are_told_apart_by_the_old_cluster_alone(
    lab: Lab, second: Stack
) -> None:
    forever = {"retention.ms": "-1"}  # else Kafka deletes what is that old, whenever it looks
    lab.create_topic(**forever)
    pair = Pair(lab, lab.stack, second, lab.stack)
    produce_at(pair.first, lab.topic, 1_700_000_000_000, range(20))
    pair.drain()
    produce_at(pair.first, lab.topic, 1_700_000_000_000, range(20, 30))
    create_topic(second, lab.topic, **forever)
    copy_records(lab.stack, second, lab.topic)
    pair.here = second

    alone = pair.move()
    done = pair.move("--old-connection", "kafka_old", *PERSON)

    assert (alone.code, "cannot tell" in alone.err) == (1, True)
    assert done.code == 0, done.err
    pair.drain()
    pair.assert_exactly_once(30)


def test_d6_a_copy_with_times_of_its_own_is_compared_by_keys_and_values(
    lab: Lab, second: Stack
) -> None:
    pair = begin(lab, second, **{"message.timestamp.type": "LogAppendTime"})
    copy_records(lab.stack, second, lab.topic)
    pair.here = second

    alone = pair.move()
    done = pair.move("--old-connection", "kafka_old", *PERSON)

    assert (alone.code, "message.timestamp.type" in alone.err) == (1, True)
    assert done.code == 0, done.err
    pair.drain()
    pair.assert_exactly_once(70)


def test_d6_of_a_batch_of_the_old_cluster_and_a_move_one_comes_first(
    pair: Pair, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_new = read_from(pair.second, batches, monkeypatch)
    moving = on_new.open()
    _ = moving.kafka
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
    request = MoveRequest(
        stream=pair.lab.stream, by="tests@example.org", reason="race", dry_run=False
    )
    work = batches.open()
    plan = batches.plan()
    staged = stage_batch(work, plan)
    verdict = check_batch(work, plan, staged)
    planned = plan_move(moving, request)

    published = publish_staged(work, plan, staged, verdict)
    moved = move_cluster(moving, planned)
    assert published.outcome == "PUBLISHED"
    assert [p.new_next for p in planned.partitions] == [50, 50]
    topic = work.stream.source.topic
    assert moved.text.endswith(f"reading continues at {topic}:0:55, {topic}:1:55")

    with pytest.raises(ClusterChangedError):
        batches.plan()
    pair.drain()
    pair.assert_exactly_once(70)


def test_d6_both_audits_see_a_row_that_is_missing_where_both_clusters_had_its_offset(
    lab: Lab, second: Stack
) -> None:
    lab.write_stream(table={"name": lab.table})
    pair = begin(lab, second)
    copy_records(lab.stack, second, lab.topic, lambda m: (m.offset() or 0) >= 20)
    pair.here = second
    pair.must_do("move-cluster", lab.stream, *PERSON)
    pair.produce(30, 70)
    pair.drain()
    pair.assert_exactly_once(100)

    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    catalog.load_table(lab.table).delete("id == 75")
    catalog.close()

    own = pair.frazil("audit", lab.stream)
    report = pair.judge()
    assert (own.code, "batches of several topic incarnations wrote" in own.out + own.err) == (
        1,
        True,
    )
    assert "E1" in report.found()
