"""A day as a table of events: which alerts each must raise, and which it must not.

The broker and the tables are real, the clock is the test's own. Each row has a stream of its own
that has read everything at 08:00; its limits are those of every new stream file: a warning after
180 seconds, a failure after 600.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import time_machine
import yaml
from broker_lake import BrokerLake
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from conftest import Stack
from lake import make_stream

from frazil.freshness import FreshnessReport
from frazil.watch import watch_stream

pytestmark = pytest.mark.stack
NOBODY = '{"conn_type": "iceberg", "extra": {"type": "rest", "uri": "http://127.0.0.1:9"}}'


@dataclass
class Day:
    """One stream, and the hour of a day that lies behind us: Kafka refuses what is to come."""

    lake: BrokerLake
    clock: time_machine.Traveller
    morning: datetime
    bootstrap: str
    patch: pytest.MonkeyPatch

    def at(self, clock: str) -> None:
        """Set the clock to an hour of the day, `10:05`."""
        hour, minute = map(int, clock.split(":"))
        self.clock.move_to(self.morning + timedelta(hours=hour, minutes=minute))

    def records(self, count: int = 2) -> None:
        """Let records come now."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        stamp = int(datetime.now(UTC).timestamp() * 1000)
        for number in range(count):
            producer.produce(
                self.lake.topic, value=b'{"id": 1}', partition=number % 2, timestamp=stamp
            )
        assert producer.flush(30) == 0

    def ingest(self) -> None:
        """Let the DAG run once."""
        self.lake.ingest()

    def watch(self) -> FreshnessReport:
        return watch_stream(self.lake.work, datetime.now(UTC))

    def retention_takes(self) -> None:
        """Let retention take everything that is unread, and one new record come."""
        for partition, offsets in enumerate(self.lake.facts.partitions):
            self.lake.delete_records(offsets.end, partition)
        self.records()

    def recreate_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([self.lake.topic])[self.lake.topic].result(60)
        while self.lake.topic in admin.list_topics(timeout=30).topics:
            pass
        self.create_topic()
        self.records()

    def create_topic(self, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topic = NewTopic(self.lake.topic, 2, 1, config=config)
        admin.create_topics([topic], request_timeout=120)[self.lake.topic].result(130)

    def catalog_goes(self) -> None:
        self.patch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", NOBODY)

    def catalog_comes(self) -> None:
        self.patch.delenv("AIRFLOW_CONN_ICEBERG_DEFAULT")


@pytest.fixture
def day(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """Begin yesterday at midnight; at 08:00 the table has all that Kafka has."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    name = f"d{secrets.token_hex(4)}"
    stream = make_stream(name, source={"topic": name}, table={"name": f"faults.{name}"})
    (tmp_path / f"{name}.yaml").write_text(
        yaml.safe_dump(stream.model_dump(mode="json", by_alias=True, exclude_unset=True))
    )
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    morning = today - timedelta(days=1)
    with time_machine.travel(morning + timedelta(hours=8), tick=True) as clock:
        day = Day(BrokerLake(tmp_path, stream), clock, morning, stack.bootstrap, monkeypatch)
        day.create_topic()
        day.records()
        day.lake.begin()
        day.ingest()
        yield day


Step = tuple[str, Callable[[Day], object] | None, str, str]
"""When, what happens, and the level and cause that a watch then must find."""

QUIET: list[Step] = [(f"{hour:02}:00", None, "ok", "idle") for hour in range(9, 24, 3)]

SLOW: list[Step] = [
    step
    for hour in (9, 13, 17, 21)
    for step in (
        (f"{hour:02}:00", Day.records, "ok", "up_to_date"),
        (f"{hour:02}:01", Day.ingest, "ok", "up_to_date"),
        (f"{hour:02}:59", None, "ok", "idle"),
    )
]

STOPPED: list[Step] = [
    ("10:00", Day.records, "ok", "up_to_date"),
    ("10:02", Day.records, "ok", "up_to_date"),
    ("10:04", Day.records, "warn", "not_planned"),
    ("10:09", None, "warn", "not_planned"),
    ("10:11", None, "fail", "not_planned"),
    ("11:00", None, "fail", "not_planned"),
    ("11:01", Day.ingest, "ok", "up_to_date"),
    ("11:30", None, "ok", "idle"),
]

RETENTION: list[Step] = [
    ("10:00", Day.records, "ok", "up_to_date"),
    ("10:02", Day.retention_takes, "fail", "source_error"),
    ("10:03", None, "fail", "source_error"),
]

OUTAGE: list[Step] = [
    ("10:00", Day.records, "ok", "up_to_date"),
    ("10:01", Day.catalog_goes, "fail", "catalog_down"),
    ("10:10", Day.records, "fail", "catalog_down"),
    ("10:11", Day.catalog_comes, "fail", "not_planned"),
    ("10:12", Day.ingest, "ok", "up_to_date"),
]

RECREATED: list[Step] = [
    ("10:00", Day.recreate_topic, "fail", "source_error"),
    ("10:30", None, "fail", "source_error"),
]


@pytest.mark.parametrize(
    "steps",
    [QUIET, SLOW, STOPPED, RETENTION, OUTAGE, RECREATED],
    ids=[
        "an idle topic",
        "a slow topic",
        "a DAG that is stopped or paused",
        "retention takes what was not read",
        "a catalog outage",
        "a topic that was created again",
    ],
)
def test_each_event_raises_its_alerts_and_no_other(day: Day, steps: list[Step]) -> None:
    seen = []
    for clock, happens, *_ in steps:
        day.at(clock)
        if happens is not None:
            happens(day)
        report = day.watch()
        seen.append((clock, report.level, report.cause))
        assert report.level == "ok" or report.next_step

    assert seen == [(clock, level, cause) for clock, _, level, cause in steps]


def test_a_loss_is_told_before_it_happens(day: Day) -> None:
    """A stop at 10:00 with an hour of retention: the time that is left counts down."""
    admin = AdminClient({"bootstrap.servers": day.bootstrap})
    set_retention(admin, day.lake.topic, 3_600_000)
    day.at("10:00")
    day.records()

    day.at("10:01")
    early = day.watch()
    day.at("10:41")
    late = day.watch()

    assert early.time_to_loss_seconds in range(3400, 3600)
    assert late.time_to_loss_seconds in range(1000, 1200)
    assert late.level == "fail"


def set_retention(admin: AdminClient, topic: str, milliseconds: int) -> None:
    entry = ConfigEntry(
        "retention.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)
