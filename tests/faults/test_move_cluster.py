"""A stream goes on with its topic's copy on a second, real cluster, and comes back (D6)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import TopicPartition
from conftest import Lab, Stack, good_values
from forked import Run
from pyiceberg.catalog import load_catalog

from faults.auditor import audit_table
from faults.brokers import copy_records, create_topic, own_broker

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
        report = audit_table(
            self.lab.stack.catalog_properties,
            "lake",
            self.lab.table,
            self.here.bootstrap,
            self.lab.stream,
        )
        assert report.findings == ()


def connect(stack: Stack) -> str:
    return json.dumps({"extra": {"bootstrap.servers": stack.bootstrap}})


@pytest.fixture
def pair(lab: Lab, second: Stack) -> Pair:
    """Begin with 60 records that were read and 10 that were not, all copied at other offsets."""
    lab.create_topic()
    made = Pair(lab, lab.stack, second, lab.stack)
    made.produce(60, 0)
    made.drain()
    made.produce(10, 60)
    create_topic(second, lab.topic)
    shift(second, lab.topic, 7, 11)
    copy_records(lab.stack, second, lab.topic)
    made.here = second
    return made


def shift(stack: Stack, topic: str, *counts: int) -> None:
    """Let records come and go, so that the next ones have other offsets."""
    strange = Lab(stack, None, topic)  # type: ignore[arg-type]
    for number, count in enumerate(counts):
        strange.produce([None] * (count * len(counts)), partitions=len(counts))
        admin = strange.admin
        place = TopicPartition(topic, number, count)
        admin.delete_records([place])[place].result(15)


def test_d6_a_stream_goes_on_with_its_copy_without_a_record_lost_or_doubled(pair: Pair) -> None:
    refused = pair.frazil("run", pair.lab.stream)
    shown = pair.move("--json")

    done = pair.move(*PERSON)
    assert done.code == 0, shown.out + shown.err + done.out + done.err
    pair.drain()
    pair.produce(20, 70)
    pair.drain()

    assert (refused.code, "move-cluster" in refused.err) == (1, True)
    assert shown.code == 0, shown.err
    assert done.code == 0, done.err
    pair.assert_exactly_once(90)
