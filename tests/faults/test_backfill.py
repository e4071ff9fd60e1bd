"""What lies below a stream's beginning, in windows, on a real broker and a real Spark (B10)."""

import json
import os
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from conftest import Stack
from support.broker_lake import BrokerLake
from support.forked import Run, run_frazil
from support.lake import make_stream

from faults.batches import EventfulEngine
from faults.judges import audit_both
from frazil.errors import (
    ConfigurationError,
    NotReplayableError,
    RetentionGapError,
    StageStaleError,
    TargetError,
)
from frazil.ledger.recovery_point import keys
from frazil.recovery.backfill import fill_window, plan_backfill
from frazil.recovery.messages import BackfillPlan, BackfillRequest, RecoverRequest, ReplayRequest
from frazil.recovery.replay import plan_replay
from frazil.recovery.rollback import plan_recovery, recover
from frazil.workspace import Workspace

pytestmark = pytest.mark.stack
OLD = 40
"""Records that are there before the stream begins: 20 in each of two partitions."""


@pytest.fixture
def unborn(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokerLake:
    """Make a stream that will begin at the end of its topic."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    name = f"l{secrets.token_hex(4)}"
    source = {"topic": name, "start": "latest"}
    stream = make_stream(
        name, source=source, table={"name": f"faults.{name}"}, batch={"max_records": 16}
    )
    content = stream.model_dump(mode="json", by_alias=True)
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    lake = BrokerLake(tmp_path, stream)
    lake.create_topic(stack.bootstrap)
    return lake


@pytest.fixture
def late(unborn: BrokerLake) -> BrokerLake:
    """Begin a stream at the end of a topic that has records, and ingest one batch."""
    unborn.produce(OLD)
    unborn.begin()
    unborn.load(10)
    assert unborn.places() == {0: list(range(20, 25)), 1: list(range(20, 25))}
    return unborn


def plan(lake: BrokerLake, **asked: object) -> BackfillPlan:
    """Plan a backfill that is meant."""
    form = {"stream": lake.stream.stream, "dry_run": False, **asked}
    return plan_backfill(lake.work, BackfillRequest.model_validate(form))


def run_backfill(lake: BrokerLake, *arguments: str, **environment: str) -> Run:
    """Backfill by the command line, in a process of its own."""
    command = ["backfill", lake.stream.stream, *arguments, "--json"]
    return run_frazil(command, {**os.environ, **environment}, timeout=240)


def all_places(end: int) -> dict[int, list[int]]:
    return {0: list(range(end)), 1: list(range(end))}


def test_a_dry_run_shows_the_windows_and_writes_nothing(late: BrokerLake) -> None:
    before = late.table.metadata_location

    run = run_backfill(late)

    assert run.code == 0, run.err
    planned = BackfillPlan.model_validate(json.loads(run.out))
    assert [w.ranges[late.topic] for w in planned.windows] == [
        {0: (0, 8), 1: (0, 8)},
        {0: (8, 16), 1: (8, 16)},
        {0: (16, 20), 1: (16, 20)},
    ]
    assert (planned.filled, planned.left, planned.dry_run) == (0, 0, True)
    assert late.table.metadata_location == before


@pytest.mark.core
def test_every_record_below_the_beginning_comes_once_and_no_offset_moves(
    late: BrokerLake,
) -> None:
    point = late.point
    planned = plan(late)

    done = [fill_window(late.work, window) for window in planned.windows]
    again = [fill_window(late.work, window) for window in planned.windows]

    assert [each.outcome for each in done] == ["FILLED"] * 3
    assert [each.outcome for each in again] == ["ALREADY"] * 3
    assert sum(each.rows_written for each in done) == OLD
    assert late.places() == all_places(25)
    assert late.point == point
    summary = late.history.entries[done[0].snapshot_id or 0].summary
    assert summary[keys.KIND] == "backfill"
    assert not [key for key in summary if key.startswith(keys.STATE_PREFIX)]
    audit_both(late)
    late.load(10)
    assert late.places() == all_places(30)
    audit_both(late)


def test_a_replay_reads_nothing_for_the_first_time(late: BrokerLake) -> None:
    name, before = late.stream.stream, late.table.metadata_location
    for asked in (f"{late.topic}:0:0-5", f"{late.topic}:1:19-21"):
        with pytest.raises(TargetError, match=rf"(?s)was never read.*`frazil backfill {name}`"):
            plan_replay(late.work, ReplayRequest(stream=name, offsets=(asked,)))
    by_time = ReplayRequest(stream=name, since="1970-01-02T00:00:00Z")
    known = plan_replay(late.work, by_time).batch.ranges

    assert known == {late.topic: {0: (20, 25), 1: (20, 25)}}
    assert late.table.metadata_location == before
    for window in plan(late).windows:
        fill_window(late.work, window)
    filled = plan_replay(late.work, by_time).batch.ranges
    assert filled == {late.topic: {0: (0, 25), 1: (0, 25)}}


@pytest.mark.storm(1)
@pytest.mark.parametrize(
    "failpoint",
    ["replay.after-stage", "replay.before-commit", "replay.after-commit"],
)
def test_a_killed_backfill_goes_on_where_it_ended(late: BrokerLake, failpoint: str) -> None:
    killed = run_backfill(late, "--no-dry-run", FRAZIL_FAILPOINT=failpoint)
    assert killed.code == -9, killed.err
    audit_both(late)

    again = run_backfill(late, "--no-dry-run", "--window-records", "13")

    assert again.code == 0, again.err
    filled = 16 if failpoint == "replay.after-commit" else 0
    assert json.loads(again.out)["plan"]["filled"] == filled
    assert late.places() == all_places(25)
    audit_both(late)


def test_a_limit_ends_it_and_the_next_one_goes_on_from_the_newest(late: BrokerLake) -> None:
    first = plan(late, max_records=20, order="newest")
    for window in first.windows:
        fill_window(late.work, window)

    assert first.left == 20
    assert late.places() == {0: list(range(10, 25)), 1: list(range(10, 25))}
    audit_both(late)

    second = plan(late, window_records=100)
    assert [w.ranges[late.topic] for w in second.windows] == [{0: (0, 10), 1: (0, 10)}]
    assert second.filled == 20


def test_of_two_backfills_at_once_each_record_comes_from_one(late: BrokerLake) -> None:
    mine, other = plan(late, window_records=30), plan(late, window_records=10)
    work = Workspace(late.stream, late.folder, "run-2")

    def fill_first() -> None:
        fill_window(late.work, other.windows[0])

    work.__dict__["engine"] = EventfulEngine(work.engine.remote, before=fill_first)
    with pytest.raises(StageStaleError, match="another backfill filled part"):
        fill_window(work, mine.windows[0])
    with pytest.raises(StageStaleError, match="another backfill filled part"):
        fill_window(late.work, mine.windows[0])
    for window in plan(late).windows:
        fill_window(late.work, window)

    assert late.places() == all_places(25)
    audit_both(late)


def test_a_rollback_behind_it_makes_its_windows_free_again(late: BrokerLake) -> None:
    before = late.head
    windows = plan(late, window_records=100).windows
    fill_window(late.work, windows[0])
    decision = ("--to-snapshot", str(before), "--by", "jane", "--reason", "drill", "--no-dry-run")
    run = run_frazil(["recover", late.stream.stream, *decision], os.environ, timeout=240)
    assert run.code == 0, run.err
    assert "frazil backfill" in run.out + run.err

    assert plan(late, window_records=100).windows == windows
    fill_window(late.work, windows[0])
    assert late.places() == all_places(25)
    audit_both(late)


def test_a_rollback_is_refused_where_kafka_cannot_give_a_window_back(late: BrokerLake) -> None:
    request = RecoverRequest(
        stream=late.stream.stream, to_snapshot=str(late.head), by="jane", reason="drill"
    )
    fill_window(late.work, plan(late, window_records=100).windows[0])
    late.delete_records(before=4)

    with pytest.raises(RetentionGapError, match=rf"backfilled records.* {late.topic}:0:0-4"):
        plan_recovery(late.work, request)
    accepted = plan_recovery(late.work, request.model_copy(update={"accept_gap": True}))
    assert "loses 1 backfilled window, 1 of them for good" in accepted.text
    assert accepted.needs_approval
    recover(late.work, accepted.model_copy(update={"request": meant(request)}))
    summary = next(
        entry.summary
        for entry in late.history.entries.values()
        if entry.summary.get(keys.KIND) == keys.REWIND
    )
    lost = json.loads(summary[keys.LOST_WINDOWS])
    assert lost == {late.stream.stream: [{late.topic: {"0": [0, 4]}}]}
    audit_both(late)


def meant(request: RecoverRequest) -> RecoverRequest:
    return request.model_copy(update={"accept_gap": True, "dry_run": False})


def test_what_kafka_no_longer_holds_is_left_out_or_refused(late: BrokerLake) -> None:
    late.delete_records(before=4)

    assert plan(late, window_records=100).windows[0].ranges[late.topic] == {0: (4, 20), 1: (0, 20)}
    with pytest.raises(NotReplayableError, match=rf"{late.topic}:0:2-20"):
        plan(late, offsets=(f"{late.topic}:0:2-20",))


def test_a_time_begins_with_its_first_record_and_ends_before_the_first_one_behind_it(
    unborn: BrokerLake,
) -> None:
    begin_ms = int(time.time() * 1000) - 3_600_000
    unborn.produce_at(begin_ms, 0, 1, 2, 3, 9, 4, 5, 6)
    unborn.begin()
    since, until = (datetime.fromtimestamp(begin_ms / 1000 + s, UTC).isoformat() for s in (2, 5))

    planned = plan(unborn, since=since, until=until)
    for window in planned.windows:
        fill_window(unborn.work, window)

    assert [window.ranges for window in planned.windows] == [{unborn.topic: {0: (2, 4)}}]
    assert unborn.places() == {0: [2, 3]}
    audit_both(unborn)


IMPOSSIBLE: list[tuple[dict[str, object], type[Exception], str]] = [
    ({"offsets": ("{topic}:0:5-21",)}, TargetError, "reaches into.*`frazil replay"),
    ({"offsets": ("{topic}:7:0-1",)}, TargetError, "{topic}:7.*`frazil"),
    ({"offsets": ("absent:0:0-1",)}, TargetError, "has not read topic absent.*`frazil streams"),
    ({"until": "tomorrow"}, ConfigurationError, "--until: .*tomorrow.*date, time and zone"),
]


def test_an_impossible_request_is_refused(late: BrokerLake, subtests: pytest.Subtests) -> None:
    for asked, error, told in IMPOSSIBLE:
        texts = asked.get("offsets", ())
        assert isinstance(texts, tuple)
        form = {**asked, "offsets": tuple(text.format(topic=late.topic) for text in texts)}
        told_here = "(?s)" + told.format(topic=late.topic)
        with subtests.test(told), pytest.raises(error, match=told_here):
            plan(late, **form)
