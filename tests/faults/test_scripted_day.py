"""A day as a table of events: which alerts each must raise, and which it must not.

The broker and the tables are real, the clock is the test's own, and how the watch's task ends is
what Airflow makes of it. Each row has a stream of its own that has read everything at 08:00; where
it says nothing else, its limits are those of every new stream file: a warning after 180 seconds, a
failure after 600.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import time_machine
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from conftest import Stack
from support.broker_lake import BrokerLake
from support.lake import make_stream

from frazil.errors import UnavailableError
from frazil.observability.freshness import FreshnessReport
from frazil.observability.watch import watch_stream

pytestmark = pytest.mark.stack
NOBODY = '{"conn_type": "iceberg", "extra": {"type": "rest", "uri": "http://127.0.0.1:9"}}'


@dataclass
class Day:
    """One stream, and the hour of a day that lies behind us: Kafka refuses what is to come.

    Nothing here may write to tables that tests share: Iceberg loads none whose time goes back.
    """

    lake: BrokerLake
    clock: time_machine.Traveller
    morning: datetime
    bootstrap: str
    patch: pytest.MonkeyPatch
    is_paused: bool = False

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

    def dies(self) -> None:
        """Let a run of the DAG be killed when its rows are staged."""
        self.lake.stage(self.lake.plan())

    def pauses(self) -> None:
        self.is_paused = True

    def goes_on(self) -> None:
        self.is_paused = False

    def watch(self) -> FreshnessReport:
        return watch_stream(self.lake.work, is_paused=self.is_paused)

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


@dataclass(frozen=True)
class Row:
    """What happens on one day, and what is said of it; `limits` and `config` where they matter."""

    steps: tuple["Step", ...]
    limits: dict[str, int] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def day(
    request: pytest.FixtureRequest, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Day]:
    """Begin yesterday at midnight; at 08:00 the table has all that Kafka has."""
    row: Row = request.getfixturevalue("row")
    monkeypatch.setenv("AIRFLOW_HOME", os.environ.get("AIRFLOW_HOME", str(tmp_path / "airflow")))
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    name = f"d{secrets.token_hex(4)}"
    sections = {"source": {"topic": name}, "table": {"name": f"faults.{name}"}}
    stream = make_stream(name, **sections, freshness=row.limits)
    (tmp_path / f"{name}.yaml").write_text(
        yaml.safe_dump(stream.model_dump(mode="json", by_alias=True, exclude_unset=True))
    )
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    morning = today - timedelta(days=1)
    with time_machine.travel(morning + timedelta(hours=8), tick=True) as clock:
        day = Day(BrokerLake(tmp_path, stream), clock, morning, stack.bootstrap, monkeypatch)
        day.create_topic(**row.config)
        day.records()
        day.lake.begin()
        day.ingest()
        yield day


Step = tuple[str, Callable[[Day], object] | None, str, str, str]
"""When, what happens, how the watch's task must end then, the cause, and words that it must say."""

QUIET = tuple((f"{hour:02}:00", None, "green", "idle", "idle") for hour in range(9, 24, 3))

SLOW = tuple(
    step
    for hour in (9, 13, 17, 21)
    for step in (
        (f"{hour:02}:00", Day.records, "green", "up_to_date", "within its limits"),
        (f"{hour:02}:01", Day.ingest, "green", "up_to_date", "up to date"),
        (f"{hour:02}:59", None, "green", "idle", "idle"),
    )
)

STOPPED = (
    ("10:00", Day.records, "green", "up_to_date", "within its limits"),
    ("10:02", Day.records, "green", "up_to_date", "within its limits"),
    ("10:04", Day.records, "warned", "not_planned", "check that DAG ingest__"),
    ("10:09", None, "warned", "not_planned", "6 unread offsets"),
    ("10:11", None, "red", "not_planned", "the scheduler is running"),
    ("11:00", None, "red", "not_planned", "6 unread offsets, the oldest waiting for 1 h"),
    ("11:01", Day.ingest, "green", "up_to_date", "up to date"),
    ("11:30", None, "green", "idle", "idle"),
)

PAUSED = (
    ("09:00", Day.pauses, "green", "idle", "idle"),
    ("10:00", Day.records, "green", "up_to_date", "within its limits"),
    ("10:04", None, "warned", "paused", "unpause DAG ingest__"),
    ("10:11", None, "red", "paused", "unpause DAG ingest__"),
    ("11:00", Day.goes_on, "red", "not_planned", "the scheduler is running"),
    ("11:01", Day.ingest, "green", "up_to_date", "up to date"),
    ("11:02", Day.pauses, "green", "up_to_date", "up to date"),
)

DIED = (
    ("10:00", Day.records, "green", "up_to_date", "within its limits"),
    ("10:01", Day.dies, "green", "running", "running"),
    ("10:04", None, "warned", "running", "check the task `stage` of DAG ingest__"),
    ("10:11", None, "red", "running", "check the task `stage` of DAG ingest__"),
    ("10:32", None, "red", "not_planned", "its runs succeed"),
    ("10:33", Day.ingest, "green", "up_to_date", "up to date"),
)

RETENTION = (
    ("10:00", Day.records, "green", "up_to_date", "Kafka may delete unread records"),
    ("10:29", None, "green", "up_to_date", "in 1 h 4"),
    ("10:32", None, "warned", "up_to_date", "raise the topic's retention"),
    ("10:33", Day.retention_takes, "red", "source_error", "accept-gap"),
    ("10:34", None, "red", "source_error", "accept-gap"),
)
"""Two hours and ten minutes are kept: the forecast warns before the delay would, after 45."""

OUTAGE = (
    ("10:00", Day.records, "green", "up_to_date", "within its limits"),
    ("10:01", Day.catalog_goes, "again", "catalog_down", "catalog down"),
    ("10:10", Day.records, "again", "catalog_down", "catalog down"),
    ("10:11", Day.catalog_comes, "red", "not_planned", "4 unread offsets"),
    ("10:12", Day.ingest, "green", "up_to_date", "up to date"),
)

RECREATED = (
    ("10:00", Day.recreate_topic, "red", "source_error", "accept-gap"),
    ("10:30", None, "red", "source_error", "accept-gap"),
)


def end_task(report: FreshnessReport) -> tuple[str, str]:
    """End the task as the DAG `watch` does: red, tried again, or green with what its log says."""
    from airflow.sdk.exceptions import AirflowFailException  # noqa: PLC0415 - needs its home set

    from frazil_airflow.outcomes import describe, require_fresh  # noqa: PLC0415 - see above

    try:
        require_fresh(report)
    except AirflowFailException as alert:
        return "red", str(alert)
    except UnavailableError as alert:
        return "again", str(alert)
    return "green" if report.level == "ok" else "warned", describe(report)


@pytest.mark.storm(4)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(Row(QUIET), id="an idle topic"),
        pytest.param(Row(SLOW), id="a slow topic"),
        pytest.param(Row(STOPPED), id="a DAG that no longer runs"),
        pytest.param(Row(PAUSED), id="a DAG that somebody paused"),
        pytest.param(Row(DIED), id="a run that was killed"),
        pytest.param(
            Row(
                RETENTION,
                {"warn_seconds": 2700, "fail_seconds": 3000},
                {"retention.ms": "7800000"},
            ),
            id="retention takes what was not read",
        ),
        pytest.param(Row(OUTAGE), id="a catalog outage"),
        pytest.param(Row(RECREATED), id="a topic that was created again"),
    ],
)
def test_each_event_raises_its_alerts_and_no_other(day: Day, row: Row) -> None:
    seen = []
    for clock, happens, _, _, words in row.steps:
        day.at(clock)
        if happens is not None:
            happens(day)
        report = day.watch()
        ends, text = end_task(report)
        seen.append((clock, ends, report.cause, words if words in text else text))
        assert ends == "green" or f"\nNext: {report.next_step}" in text

    assert seen == [(clock, *told) for clock, _, *told in row.steps]
