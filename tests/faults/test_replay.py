"""Exact offsets again, without duplicates, on a real broker and a real Spark (features B2)."""

import json
import os
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from conftest import Lab
from support.broker_lake import BrokerLake
from support.forked import Run, run_frazil

from faults.batches import EventfulEngine
from faults.judges import audit_both
from frazil.errors import (
    BudgetExceededError,
    ConfigurationError,
    NotReplayableError,
    SourceError,
    TargetError,
)
from frazil.ledger.recovery_point import keys
from frazil.maintenance.compaction import compact_table
from frazil.recovery.messages import Differences, ReplayPlan, ReplayRequest
from frazil.recovery.replay import plan_replay, replay
from frazil.workspace import Workspace

pytestmark = pytest.mark.stack


def plan(lake: BrokerLake, *ranges: str, work: Workspace | None = None) -> ReplayPlan:
    """Plan a replay that is meant; ranges are written without their topic."""
    offsets = tuple(f"{lake.topic}:{each}" for each in ranges)
    request = ReplayRequest(stream=lake.stream.stream, offsets=offsets, dry_run=False)
    return plan_replay(work or lake.work, request)


def run_replay(lake: BrokerLake, *arguments: str, **environment: str) -> Run:
    """Replay by the command line, in a process of its own."""
    command = ["replay", lake.stream.stream, *arguments, "--json"]
    return run_frazil(command, {**os.environ, **environment}, timeout=240)


def ids(lake: BrokerLake) -> dict[tuple[int, int], int]:
    """Give the column `id` by partition and offset: staged rows say their offset, Kafka says 1."""
    rows = lake.table.scan(selected_fields=("id", "_kafka")).to_arrow().to_pylist()
    return {(r["_kafka"]["partition"], r["_kafka"]["offset"]): r["id"] for r in rows}


def test_a_dry_run_says_what_would_change_and_writes_nothing(broker_lake: BrokerLake) -> None:
    broker_lake.load(20)
    before = broker_lake.table.metadata_location

    run = run_replay(broker_lake, "--offsets", f"{broker_lake.topic}:0:2-6")

    assert run.code == 0, run.err
    found = Differences.model_validate(json.loads(run.out)["differences"])
    assert found == Differences(rows_now=4, rows_read=4, rows_good=4, changed=4)
    assert broker_lake.table.metadata_location == before


@pytest.mark.core
def test_a_replay_puts_todays_rows_in_place_and_touches_no_other(broker_lake: BrokerLake) -> None:
    broker_lake.load(20)
    broker_lake.load(20)
    point = broker_lake.point

    done = replay(broker_lake.work, plan(broker_lake, "0:8-12", "1:0-3"))

    assert (done.rows_written, done.rows_deleted) == (7, 7)
    replayed = {*((0, offset) for offset in range(8, 12)), *((1, offset) for offset in range(3))}
    expected = {(p, o): 1 if (p, o) in replayed else o for p in (0, 1) for o in range(20)}
    assert ids(broker_lake) == expected
    assert broker_lake.point == point
    summary = broker_lake.history.entries[done.snapshot_id].summary
    assert (summary[keys.KIND], summary[keys.BATCH_ID]) == ("replay", done.batch_id)
    assert summary[keys.ROWS_DELETED] == "7"
    assert not [key for key in summary if key.startswith(keys.STATE_PREFIX)]
    audit_both(broker_lake)
    broker_lake.load(10)
    audit_both(broker_lake)


def test_a_replay_may_be_repeated_any_number_of_times(broker_lake: BrokerLake) -> None:
    broker_lake.load(20)
    planned = plan(broker_lake, "0:0-10")
    first = replay(broker_lake.work, planned)

    same = replay(broker_lake.work, planned)
    other = replay(broker_lake.work, plan(broker_lake, "0:0-10", work=later(broker_lake)))

    assert (first.outcome, same.outcome, other.outcome) == ("REPLAYED", "ALREADY", "REPLAYED")
    assert same.snapshot_id == first.snapshot_id
    assert broker_lake.places() == {0: list(range(10)), 1: list(range(10))}
    audit_both(broker_lake)


def later(lake: BrokerLake) -> Workspace:
    """Open the stream in another run."""
    return Workspace(lake.stream, lake.folder, "run-2")


def test_batches_and_compactions_between_stage_and_publish_do_not_starve_a_replay(
    broker_lake: BrokerLake,
) -> None:
    for _ in range(6):
        broker_lake.load(10)
    work = broker_lake.work
    planned = plan(broker_lake, "0:3-17", work=work)

    def others_write() -> None:
        broker_lake.load(10)
        assert compact_table(broker_lake.work).tables[0].rewritten == ("files",)

    work.__dict__["engine"] = EventfulEngine(work.engine.remote, after=others_write)
    done = replay(work, planned)

    assert (done.rows_written, done.rows_deleted) == (14, 14)
    assert broker_lake.places() == {0: list(range(35)), 1: list(range(35))}
    assert [ids(broker_lake)[0, offset] for offset in (2, 3, 16, 17)] == [2, 1, 1, 17]
    audit_both(broker_lake)


@pytest.mark.storm(1)
@pytest.mark.parametrize(
    "failpoint", ["replay.after-stage", "replay.before-commit", "replay.after-commit"]
)
def test_a_kill_replays_wholly_or_not_at_all_and_the_next_one_finishes(
    broker_lake: BrokerLake, failpoint: str
) -> None:
    broker_lake.load(20)
    command = ("--offsets", f"{broker_lake.topic}:0:2-6", "--no-dry-run")
    killed = run_replay(broker_lake, *command, FRAZIL_FAILPOINT=failpoint)
    assert killed.code == -9, killed.err
    audit_both(broker_lake)
    name = broker_lake.stream.stream
    maintained = run_frazil(["maintain", name, "--no-dry-run"], dict(os.environ), timeout=240)
    assert maintained.code == 0, maintained.err

    again = run_replay(broker_lake, *command)

    assert again.code == 0, again.err
    assert broker_lake.places() == {0: list(range(10)), 1: list(range(10))}
    audit_both(broker_lake)


def test_a_record_that_no_longer_decodes_becomes_a_dead_letter_and_comes_back(
    broker_lake: BrokerLake,
) -> None:
    lake = broker_lake
    producer = Producer(lake.work.kafka_config)
    for value in [b'{"id": 1}', b"no json", b'{"id": 1}', b'{"id": 1}'] * 10:
        producer.produce(lake.topic, value=value, partition=0)
    assert producer.flush(30) == 0
    lake.ingest()
    lenient = lake.stream.errors.model_copy(update={"max_bad_ratio": 0.5})
    work = Workspace(lake.stream.model_copy(update={"errors": lenient}), lake.folder, "run-2")

    with pytest.raises(BudgetExceededError, match="replay again"):
        replay(lake.work, plan(lake, "0:0-40"))
    done = replay(work, plan(lake, "0:0-40", work=work))

    assert (done.rows_written, done.rows_quarantined, done.rows_deleted) == (30, 10, 40)
    audit_both(lake)
    lake.load(4)


HISTORIES = {
    "letters that stay": (30, 20, 0, 0.05),
    "few rows that become letters": (40, 5, 1, 0.05),
    "many rows that become letters": (20, 5, 10, 0.05),
    "letters and a ratio of 0": (10, 5, 0, 0),
    "one row and a ratio of 0": (10, 5, 1, 0),
}


@pytest.mark.storm(1)
@pytest.mark.parametrize("history", HISTORIES)
def test_a_replay_does_what_its_dry_run_promises(lab: Lab, history: str) -> None:
    good, bad, nameless, ratio = HISTORIES[history]
    lab.create_topic(1)
    values = [b'{"id": %d, "name": "a"}' % n for n in range(good)]
    values += [b'{"id": %d}' % n for n in range(nameless)] + [b"no json"] * bad
    lab.produce(values, 1)
    lab.write_stream(errors={"max_bad_ratio": 1.0}, batch={"max_records": 1000})
    assert lab.frazil("run", lab.stream).code == 0
    redriven = lab.frazil("replay-dead-letters", lab.stream, "--no-dry-run")
    assert redriven.code == 0, redriven.err
    columns = {"id": "long!", "name": "string!", "amount": "double"}
    lab.write_stream(errors={"max_bad_ratio": ratio}, value={"convert": "json", "columns": columns})
    command = ("replay", lab.stream, "--offsets", f"{lab.topic}:0:0-{len(values)}")

    promised = lab.frazil(*command)
    done = lab.frazil(*command, "--no-dry-run")

    assert promised.code == 0, promised.err
    is_refused = "it would be refused" in promised.out
    assert is_refused is (nameless > 1 or (nameless == 1 and ratio == 0))
    assert done.code == int(is_refused), done.err
    assert ("BudgetExceeded" in done.err) is is_refused
    assert lab.frazil("audit", lab.stream).code == 0


def test_what_kafka_does_not_deliver_is_told_before(broker_lake: BrokerLake) -> None:
    broker_lake.load(20)
    broker_lake.delete_records(before=4)

    with pytest.raises(NotReplayableError, match=rf"{broker_lake.topic}:0:2-6"):
        plan(broker_lake, "0:2-6")
    set_topic(broker_lake, "cleanup.policy", "compact")
    with pytest.raises(NotReplayableError, match="is compacted"):
        plan(broker_lake, "0:5-6")


def test_a_time_begins_with_its_first_record_and_ends_before_the_first_one_behind_it(
    broker_lake: BrokerLake,
) -> None:
    begin_ms = int(time.time() * 1000) - 3_600_000
    broker_lake.produce_at(begin_ms, 0, 1, 2, 3, 9, 4, 5, 6)
    broker_lake.ingest()
    since, until = (datetime.fromtimestamp(begin_ms / 1000 + s, UTC).isoformat() for s in (2, 5))
    request = ReplayRequest(
        stream=broker_lake.stream.stream, since=since, until=until, dry_run=False
    )

    planned = plan_replay(broker_lake.work, request)
    done = replay(broker_lake.work, planned)

    # The record of second 4 came late, behind one of second 9: Kafka's index ends there.
    assert planned.batch.ranges == {broker_lake.topic: {0: (2, 4)}}
    assert (done.rows_written, done.rows_deleted) == (2, 2)
    assert ids(broker_lake) == {(0, o): 1 if o in {2, 3} else o for o in range(8)}
    audit_both(broker_lake)


def set_topic(lake: BrokerLake, name: str, value: str) -> None:
    """Change a setting of the topic."""
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, lake.topic, incremental_configs=[entry])
    admin = AdminClient(lake.work.kafka_config)
    admin.incremental_alter_configs([resource])[resource].result(15)


Refused = type[Exception] | tuple[type[Exception], ...]
UNCLEAR: list[tuple[dict[str, object], Refused, str]] = [
    ({}, ConfigurationError, "given: neither.*--offsets as topic:partition:start-end"),
    (
        {"offsets": ("{topic}:0:0-5",), "since": "2026-01-31T00:00:00Z"},
        ConfigurationError,
        "given: both.*--since",
    ),
    ({"offsets": ("{topic}:0:5-5",)}, ConfigurationError, "empty range.*{topic}:0:5 for"),
    ({"offsets": ("{topic} 0 to 5",)}, ConfigurationError, "'{topic} 0 to 5'.*flights:0:1"),
    (
        {"offsets": ("{topic}:0:0-5", "{topic}:0:6-7")},
        ConfigurationError,
        "partition {topic}:0 has two ranges.*one range for each",
    ),
    (
        {"offsets": ("{topic}:0:5-11",)},
        TargetError,
        "ends above.*continues at {topic}:0:.*`frazil snapshots",
    ),
    ({"offsets": ("{topic}:7:0-1",)}, TargetError, "{topic}:7.*`frazil snapshots"),
    ({"offsets": ("nobody:0:0-1",)}, (TargetError, SourceError), "nobody.*`frazil"),
    ({"since": "yesterday"}, ConfigurationError, "--since: .*yesterday.*date, time and zone"),
    ({"since": "2100-01-01T00:00:00Z"}, TargetError, "no record in this time range.*`frazil snap"),
]


def test_an_unclear_or_impossible_request_is_refused(
    broker_lake: BrokerLake, subtests: pytest.Subtests
) -> None:
    broker_lake.load(20)
    topic = broker_lake.topic

    for asked, error, told in UNCLEAR:
        texts = asked.get("offsets", ())
        assert isinstance(texts, tuple)
        offsets = tuple(text.format(topic=topic) for text in texts)
        form = {"stream": broker_lake.stream.stream, **asked, "offsets": offsets}
        request = ReplayRequest.model_validate(form)
        told_here = "(?s)" + told.format(topic=topic)
        with subtests.test(told), pytest.raises(error, match=told_here):
            plan_replay(broker_lake.work, request)
