"""A rollback of rows and offsets together, on a real broker (features B5)."""

import json
import os
from datetime import UTC, datetime

import pytest
from conftest import Lab, good_values
from support.broker_lake import BrokerLake
from support.forked import Run, run_frazil
from support.stack_lake import let_days_pass

from faults.batches import Batches
from faults.judges import audit_both
from frazil.errors import (
    ConfigurationError,
    ForeignRollbackError,
    NothingToDecideError,
    RetentionGapError,
    SupersededError,
    TargetError,
)
from frazil.ledger.recovery_point import keys
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.observability.audit import audit_stream
from frazil.observability.timeline import derive_events, join_events
from frazil.observability.timeline_table import read_recorded, record_timeline
from frazil.recovery.messages import RecoverRequest, RecoveryPlan
from frazil.recovery.rollback import TAG_PREFIX, plan_recovery, recover

pytestmark = pytest.mark.stack

WHO = ("--by", "jane@example.org", "--reason", "bad release")
DO = (*WHO, "--no-dry-run")
LONG_AGO, FAR_FUTURE = datetime(2000, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def heads(broker_lake: BrokerLake) -> list[int]:
    """Publish three batches of ten records; give main's head after each."""
    return [broker_lake.load(10) for _ in range(3)]


def plan(lake: BrokerLake, **request: object) -> RecoveryPlan:
    """Plan a recovery that is meant."""
    given = {"by": "jane@example.org", "reason": "bad release", "dry_run": False, **request}
    asked = RecoverRequest.model_validate({"stream": lake.stream.stream, **given})
    return plan_recovery(lake.work, asked)


def run_recover(lake: BrokerLake, *arguments: str, **environment: str) -> Run:
    """Recover by the command line, in a process of its own."""
    command = ["recover", lake.stream.stream, *arguments, "--json"]
    return run_frazil(command, {**os.environ, **environment}, timeout=120)


def test_a_dry_run_shows_what_goes_and_writes_nothing(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    before = broker_lake.table.metadata_location

    run = run_recover(broker_lake, "--to-snapshot", str(heads[0]))

    assert run.code == 0, run.err
    answer = json.loads(run.out)
    topic = broker_lake.topic
    assert answer["rows_going"] == 20
    assert answer["again"] == {topic: {topic: {"0": [5, 15], "1": [5, 15]}}}
    assert answer["lost"] == {}
    assert len(answer["snapshots_going"]) == 2
    assert broker_lake.table.metadata_location == before


@pytest.mark.core
def test_rows_and_offsets_go_back_and_exactly_that_range_is_read_again(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic()
    lab.produce(good_values(10))
    first = batches.publish().snapshot_id
    lab.produce([*good_values(10, start=10), b"no json"])
    batches.publish()

    run = lab.frazil("recover", lab.stream, "--to-snapshot", str(first), *DO)

    assert run.code == 0, run.err
    assert batches.places() == {0: list(range(5)), 1: list(range(5))}
    assert batches.faults() == ()
    again = batches.publish()
    assert again.ranges == {lab.topic: {0: (5, 11), 1: (5, 10)}}
    assert again.rows_quarantined == 1
    assert batches.faults() == ()
    assert lab.frazil("audit", lab.stream).code == 0


def test_a_rewind_says_who_why_and_from_where_and_leaves_the_old_head_readable(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    done = recover(broker_lake.work, plan(broker_lake, to_snapshot=heads[0]))

    entry, table = broker_lake.history.entries[broker_lake.head], broker_lake.table
    assert (entry.snapshot_id, entry.parent_id) == (done.snapshot_id, heads[0])
    said = entry.summary
    assert (said[keys.KIND], said[keys.BY]) == ("rewind", "jane@example.org")
    assert said[keys.ABANDONED_HEAD] == str(heads[2])
    tags = [ref for name, ref in table.metadata.refs.items() if name != "main"]
    assert [(ref.snapshot_id, ref.snapshot_ref_type) for ref in tags] == [(heads[2], "tag")]
    assert table.scan(snapshot_id=heads[2]).to_arrow().num_rows == 30


def test_a_timeline_that_is_written_anew_still_tells_what_went_back(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    recover(broker_lake.work, plan(broker_lake, to_snapshot=heads[0]))
    stream = broker_lake.stream.stream
    record_timeline(broker_lake.work)
    recorded = read_recorded(broker_lake.store, LONG_AGO, f"stream = '{stream}'")
    for tag in [name for name in broker_lake.table.metadata.refs if name != "main"]:
        broker_lake.table.manage_snapshots().remove_tag(tag).commit()
    broker_lake.table.maintenance.expire_snapshots().older_than(FAR_FUTURE).commit()

    events = list(derive_events(broker_lake.history, stream))

    assert not set(heads) & set(broker_lake.history.entries)
    assert join_events(events) == join_events(recorded)
    assert [each.kind for each in join_events(events)] == ["bootstrap", *["ingest"] * 3, "rewind"]


def test_the_left_head_stays_for_the_rollback_window_and_then_expires(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    done = recover(broker_lake.work, plan(broker_lake, to_snapshot=heads[0]))
    broker_lake.ingest()
    tag = f"{TAG_PREFIX}{done.snapshot_id}"
    let_days_pass(broker_lake, 0.9)
    expire_snapshots(broker_lake.work)
    assert tag in broker_lake.table.metadata.refs

    let_days_pass(broker_lake, 4)
    expire_snapshots(broker_lake.work)

    assert tag not in broker_lake.table.metadata.refs
    assert not {heads[1], heads[2]} & set(broker_lake.history.entries)
    audit_both(broker_lake)


def test_the_same_decision_given_twice_is_written_once(
    broker_lake: BrokerLake, heads: list[int]
) -> None:  # C13
    first = recover(broker_lake.work, plan(broker_lake, to_snapshot=heads[0]))
    broker_lake.ingest()

    second = recover(broker_lake.work, plan(broker_lake, to_snapshot=heads[0]))

    assert (first.outcome, second.outcome) == ("RECORDED", "ALREADY")
    assert first.snapshot_id == second.snapshot_id
    assert broker_lake.places() == {0: list(range(15)), 1: list(range(15))}
    audit_both(broker_lake)


def test_a_second_rewind_after_the_first_goes_back_once_more(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    recover(broker_lake.work, plan(broker_lake, to_snapshot=heads[1]))
    broker_lake.ingest()

    recover(broker_lake.work, plan(broker_lake, to_snapshot=heads[0], reason="worse than thought"))

    assert broker_lake.places() == {0: list(range(5)), 1: list(range(5))}
    audit_both(broker_lake)
    broker_lake.ingest()
    audit_both(broker_lake)


@pytest.mark.storm(1)
@pytest.mark.parametrize("failpoint", ["rollback.before-commit", "rollback.after-commit"])
def test_a_kill_rewinds_wholly_or_not_at_all_and_the_command_finishes_it(
    broker_lake: BrokerLake, heads: list[int], failpoint: str
) -> None:
    command = ("--to-snapshot", str(heads[0]), *DO)
    killed = run_recover(broker_lake, *command, FRAZIL_FAILPOINT=failpoint)
    assert killed.code == -9, killed.err
    audit_both(broker_lake)

    again = run_recover(broker_lake, *command)

    assert again.code == 0, again.err
    assert broker_lake.kinds.count("rewind") == 1
    broker_lake.ingest()
    audit_both(broker_lake)


def test_what_kafka_no_longer_holds_stops_the_rollback_unless_somebody_gives_it_up(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    broker_lake.delete_records(before=8)
    with pytest.raises(RetentionGapError, match=rf"{broker_lake.topic}:0:5-8"):
        plan(broker_lake, to_snapshot=heads[0])
    assert broker_lake.head == heads[2]

    recover(broker_lake.work, plan(broker_lake, to_snapshot=heads[0], accept_gap=True))

    broker_lake.ingest()
    assert broker_lake.places() == {0: [*range(5), *range(8, 15)], 1: list(range(15))}
    audit_both(broker_lake)
    told = audit_stream(broker_lake.work).facts_line
    assert "1 recorded gap (3 lost offsets); 1 rollback" in told


def test_nobody_gives_up_more_than_was_shown(broker_lake: BrokerLake, heads: list[int]) -> None:
    """An approval may come a day after the plan; Kafka deletes on meanwhile."""
    broker_lake.delete_records(before=8)
    planned = plan(broker_lake, to_snapshot=heads[0], accept_gap=True)
    broker_lake.delete_records(before=9)

    with pytest.raises(SupersededError, match="Kafka deleted more"):
        recover(broker_lake.work, planned)

    assert broker_lake.head == heads[2]
    audit_both(broker_lake)


def test_a_kill_between_rewind_and_gap_is_finished_by_the_same_command(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    broker_lake.delete_records(before=8)
    command = ("--to-snapshot", str(heads[0]), "--accept-gap", *DO)
    killed = run_recover(broker_lake, *command, FRAZIL_FAILPOINT="rollback.after-commit")
    assert killed.code == -9, killed.err

    assert run_recover(broker_lake, *command).code == 0
    broker_lake.delete_records(before=11)

    assert run_recover(broker_lake, *command).code == 0, "and accepts no later gap"
    assert broker_lake.kinds.count("gap") == 1


def test_what_others_change_between_plan_and_rewind_is_not_thrown_away(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    planned = plan(broker_lake, to_snapshot=heads[0])
    broker_lake.append_foreign(100)

    with pytest.raises(SupersededError, match="plan again"):
        recover(broker_lake.work, planned)


def test_a_batch_between_plan_and_rewind_goes_too_and_is_read_again(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    planned = plan(broker_lake, to_snapshot=heads[0])
    broker_lake.load(10)

    recover(broker_lake.work, planned)

    assert broker_lake.plan().ranges == {broker_lake.topic: {0: (5, 20), 1: (5, 20)}}
    broker_lake.ingest()
    audit_both(broker_lake)


def test_a_rollback_by_others_may_be_left_out_as_a_recorded_gap(
    broker_lake: BrokerLake, heads: list[int]
) -> None:
    broker_lake.table.manage_snapshots().rollback_to_snapshot(heads[0]).commit()
    with pytest.raises(ForeignRollbackError, match="--skip"):
        plan(broker_lake, to_snapshot=heads[0])

    recover(broker_lake.work, plan(broker_lake, answer="skip"))

    broker_lake.load(10)
    assert broker_lake.places() == {p: [*range(5), *range(15, 20)] for p in (0, 1)}
    audit_both(broker_lake)


UNCLEAR: list[tuple[dict[str, object], type[Exception], str]] = [
    ({}, ConfigurationError, "needs exactly one of .*`frazil snapshots"),
    (
        {"to_snapshot": 1, "to_time": "2026-01-31T00:00:00Z"},
        ConfigurationError,
        "given: .*to-snapshot.*to-time",
    ),
    ({"to_snapshot": 1}, TargetError, "snapshot 1 is not on main.*`frazil snapshots"),
    ({"to_time": "yesterday"}, ConfigurationError, "yesterday.*date, time and zone"),
    ({"to_time": "2026-01-31T00:00:00"}, ConfigurationError, "zone.*date, time and zone"),
    ({"to_time": "1999-01-31T00:00:00Z"}, TargetError, "1999.*`frazil snapshots"),
    ({"to_offset": "orders-0-5"}, ConfigurationError, "'orders-0-5'.*flights:0:4711"),
    ({"to_offset": "nobody:0:5"}, TargetError, "no partition nobody:0.*`frazil status"),
    ({"answer": "skip"}, NothingToDecideError, "`frazil"),
    (
        {"answer": "reingest", "accept_gap": True},
        ConfigurationError,
        "--accept-gap is for.*`frazil accept-gap",
    ),
    (
        {"to_snapshot": 1, "dry_run": False, "by": ""},
        ConfigurationError,
        "a name and a reason: no user is known.*--by YOU",
    ),
]


def test_an_unclear_or_impossible_request_is_refused_and_writes_nothing(
    broker_lake: BrokerLake, subtests: pytest.Subtests
) -> None:
    broker_lake.load(4)
    before = broker_lake.table.metadata_location

    for request, error, told in UNCLEAR:
        with subtests.test(told), pytest.raises(error, match=f"(?s){told}"):
            plan(broker_lake, **{"dry_run": True, **request})

    assert broker_lake.table.metadata_location == before
