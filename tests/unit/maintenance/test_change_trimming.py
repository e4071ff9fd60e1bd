"""Trimming and row expiry of a stream with a state table: what leaves, what stays, what holds."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import time_machine
from faults.state_auditor import Fold, StateRules, audit_state_table
from pyiceberg.types import StringType
from support.dated_lake import COUNTS, EXPIRE, KEEP, NOW, SECTIONS, Dated
from support.event_lake import EVENTS, LARGE, Event, EventLake, Source
from support.lake import append
from support.scripted_catalog import honest, overtaken_by, refused
from support.state_lake import BAD, Change, make_state_lake

from frazil.errors import StageStaleError, TargetError
from frazil.iceberg.table_schema import build_table_schema
from frazil.iceberg.table_view import TableView
from frazil.ingest.publishing import Marker, publish_marker
from frazil.ledger import keys
from frazil.ledger.history import find_trimmed, trace_steps
from frazil.ledger.offsets import OffsetRange
from frazil.observability.audit_messages import Finding
from frazil.recovery.replay_rules import list_erased_offsets, require_not_trimmed
from frazil.state_tables.merge_rules import find_position, plan_merge
from frazil.state_tables.state_audit import audit_state
from frazil.state_tables.trim_rules import (
    Trimming,
    choose_trimmed,
    drop_headers,
    find_cut,
    find_holding,
)
from frazil.streams.models import Stream


@pytest.fixture
def by() -> str:
    return "kafka"


@pytest.fixture
def further() -> tuple[Change, ...]:
    """Return further changes of partition 1, published 38 days ago."""
    return ()


@pytest.fixture
def lake(tmp_path: Path, by: str, further: tuple[Change, ...]) -> Iterator[Dated]:
    """Publish three keys 40 days ago, of which one was deleted, and changes of another today."""
    with time_machine.travel(NOW - timedelta(days=41)):
        lake = make_state_lake(Dated, tmp_path, "orders", **SECTIONS[by], **KEEP)
    old = (Change(1, "c", 1, "first"), Change(1, "u", 5, "last"), Change(2, "c", 2, "x"))
    lake.publish_at(40, old, (Change(3, "c", 1, "three"), Change(4, "c", 3, "four")))
    lake.publish_at(39, (Change(2, "d", 7),), further)
    lake.publish_at(1, (), (Change(3, "u", 95, "new"), Change(3, "u", 96, "newer")))
    lake.merge()
    with time_machine.travel(NOW):
        yield lake
    lake.close()


@pytest.mark.parametrize("by", ["kafka", "sequence"])
def test_replaced_changes_leave_and_all_audits_hold(lake: Dated, by: str) -> None:
    assert lake.find_wrong() == []
    preview = lake.expire("look", dry_run=True)

    report = lake.expire()

    left = [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert lake.changes_left() == sorted([*left, (0, 3)] if by == "sequence" else left)
    assert lake.deletes_left() == ([2] if by == "sequence" else [])
    assert preview.trimmed == report.trimmed == (2 if by == "sequence" else 3)
    assert "replaced change" in report.text
    assert lake.find_wrong() == []
    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    assert plan_merge(lake.history, lake.stream, position) is None
    assert lake.expire("again").trimmed == 0


@pytest.mark.parametrize("further", [(Change(6, "c", 90, "young"), Change(6, "u", 95, "younger"))])
def test_a_dry_run_counts_changes_of_expired_keys_once(lake: Dated) -> None:
    expiring = lake.stream.model_copy(
        update={"maintenance": lake.stream.maintenance.model_validate(EXPIRE["maintenance"])}
    )
    both = replace(lake, stream=expiring)

    preview = both.expire("look", dry_run=True)

    report = both.expire()
    assert (preview.rows, preview.trimmed) == (report.rows, report.trimmed) == (3, 1)
    assert lake.changes_left() == [(1, 0), (1, 3), (1, 4), (1, 5)]
    assert both.find_wrong() == []


def test_a_state_behind_batches_is_trimmed_also_where_its_position_is_expired(lake: Dated) -> None:
    lake.publish_at(0, (Change(1, "u", 99, "not merged"),))
    lake.expire_history()

    report = lake.expire()

    assert (report.problem, report.trimmed) == ("", 3)
    assert lake.changes_left() == [(0, 1), (0, 4), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert audit_state(lake.store, lake.stream).findings == ()
    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    plan = plan_merge(lake.history, lake.stream, position)
    assert plan is not None
    assert plan.added == {"orders": {0: [(4, 5)]}}


def test_a_trimming_names_no_offsets_that_are_not_merged(lake: Dated) -> None:
    lake.publish_at(0, (Change(1, "u", 99, "not merged"),))

    with time_machine.travel(NOW + timedelta(days=31)):
        lake.expire()
    assert find_trimmed(trace_steps(lake.history, "orders")) == {("orders", 0): 4, ("orders", 1): 4}


def test_a_killed_trimming_is_finished_by_the_next_run(lake: Dated) -> None:
    lake.expire()
    place = {"topic": "orders", "partition": 0, "offset": 3}
    row = {"id": 2, "_kafka": place, "memory": "m"}
    append(lake.catalog, lake.store.load(f"{lake.state_name}__deletes"), [row])

    assert lake.expire("again").trimmed == 0
    assert lake.deletes_left() == []


def kill_behind(lake: Dated, commits: int) -> None:
    """Let the process end at a commit, behind so many others; snapshots list one run of offsets."""
    lake.catalog.script = [*[honest] * commits, refused(KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        lake.expire()


def fold_rows(lake: Dated) -> dict[object, object]:
    """Fold the changes that are left, whatever has happened; return the name of each key."""
    fold = Fold(lake.rules, lake.table.scan().to_arrow().to_pylist())
    return {key[0]: row["name"] for key, row in fold.winners() if not fold.is_delete(row)}


@pytest.mark.parametrize("commits", range(6))
def test_a_trimming_that_ends_at_any_commit_revives_no_key(
    lake: Dated, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    monkeypatch.setattr("frazil.maintenance.row_deletion.MAX_RUNS", 1)

    kill_behind(lake, commits)

    assert fold_rows(lake) == {1: "last", 3: "newer", 4: "four"}
    assert lake.find_wrong() == []
    lake.expire("again")
    assert lake.changes_left() == [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert (lake.deletes_left(), lake.find_wrong()) == ([], [])


def test_the_changes_that_are_left_still_fold_to_the_state(lake: Dated) -> None:
    lake.expire()

    assert fold_rows(lake) == {1: "last", 3: "newer", 4: "four"}


def test_a_state_that_was_rolled_back_folds_all_changes(lake: Dated) -> None:
    first = lake.history.entries[lake.history.head or 0].parent_id
    lake.expire()
    position = lake.position(COUNTS).model_copy(update={"snapshot_id": first})

    plan = plan_merge(lake.history, lake.stream, position)

    assert plan is not None
    assert plan.added is None
    assert "trim snapshot" in plan.reason


@pytest.mark.parametrize("further", [(Change(5, BAD, 0), Change(5, "d", 8))])
def test_a_delete_stays_while_an_older_change_can_still_come(lake: Dated) -> None:
    lake.expire()

    assert (1, 3) in lake.changes_left()
    assert lake.deletes_left() == [5]
    assert (0, 3) not in lake.changes_left()
    assert lake.find_wrong() == []


def test_a_replay_or_backfill_below_the_cut_is_refused(lake: Dated) -> None:
    lake.expire()
    steps = trace_steps(lake.history, "orders")

    with pytest.raises(TargetError, match="only the newest change of each key") as refused:
        require_not_trimmed("orders", {"orders": {0: OffsetRange(3, 4)}}, steps)
    assert "orders:0:4" in refused.value.facts
    require_not_trimmed("orders", {"orders": {1: OffsetRange(2, 4)}}, steps)


def test_a_state_that_is_not_merged_keeps_everything(lake: Dated) -> None:
    table, history = lake.table, lake.history
    publish_marker(lake.store, table, Marker(keys.REPLAY, {}, history.head, "test", {}))

    report = lake.expire()

    assert (report.trimmed, len(lake.changes_left())) == (0, 8)
    assert "`frazil merge orders` first" in report.text


def test_a_replay_that_overtakes_keeps_everything(lake: Dated) -> None:
    def replay() -> None:
        publish_marker(
            lake.store, lake.table, Marker(keys.REPLAY, {}, lake.history.head, "test", {})
        )

    lake.catalog.script = [overtaken_by(replay)]

    with pytest.raises(StageStaleError, match="changed while its changes were read"):
        lake.expire()
    assert len(lake.changes_left()) == 8


@dataclass(frozen=True)
class Sent:
    """A log of change events in one partition, as rows of the change table."""

    stream: Stream
    rows: list[dict[str, object]]
    source: dict[int, dict[str, object]]

    @classmethod
    def make(cls, seed: int) -> "Sent":
        table = {"name": "shop.orders", "mode": "upsert", "id_columns": ["id"]}
        base = {"stream": "orders", "owner": "me", "source": {"topic": "orders"}, "table": table}
        stream = Stream.model_validate({**base, **EVENTS})
        source, sent = Source(random.Random(seed)), list[Event]()
        for _ in range(4):
            sent += source.change(40)
            sent += source.repeat(8) if seed % 2 else source.snapshot()
        places = [{"topic": "orders", "partition": 0, "offset": n} for n in range(len(sent))]
        rows = [EventLake.make_row(e, place) for e, place in zip(sent, places, strict=True)]
        schema = build_table_schema(stream.parsed_columns).as_arrow()
        return cls(stream, pa.Table.from_pylist(rows, schema).to_pylist(), source.rows)

    def trim(self, cut: int, *letters: int) -> list[dict[str, object]]:
        """Trim while some records are dead letters; return what is left, the letters as rows."""
        schema = build_table_schema(self.stream.parsed_columns).as_arrow()
        read = [row for offset, row in enumerate(self.rows) if offset not in letters]
        changes = pa.Table.from_pylist(read, schema)
        gone, _ = choose_trimmed(
            self.stream, drop_headers(changes), Trimming({("orders", 0): cut}, {})
        )
        taken = {int(offset) for offsets in gone.values() for offset in offsets}
        assert max(taken, default=-1) < cut
        return [row for offset, row in enumerate(self.rows) if offset not in taken]

    def folds(self, rows: list[dict[str, object]]) -> bool:
        """Return whether the rows fold to the source."""
        rules = StateRules("orders", "shop.orders", ("id",), operation="_op", has_events=True)
        return fold(rules, rows) == self.source


@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_of_change_events_fills_as_all_of_them_did(seed: int) -> None:
    sent = Sent.make(seed)

    left = sent.trim(random.Random(seed).randrange(len(sent.rows) // 2, len(sent.rows)))

    assert len(left) < len(sent.rows)
    assert sent.folds(left)
    assert sent.folds(sent.rows)


@pytest.mark.parametrize(
    ("letter", "ends"), [((0, 4), (4, 2)), ((1, 2), (4, 2)), ((0, 3), (3, 2)), ((0, 0), (0, 0))]
)
def test_the_history_is_cut_below_what_an_open_dead_letter_may_need(
    lake: Dated, letter: tuple[int, int], ends: tuple[int, ...]
) -> None:
    before_ms = int((NOW - timedelta(days=30)).timestamp() * 1000)
    partition, offset = letter

    cut = find_cut(lake.history, "orders", before_ms, {("orders", partition): offset})

    assert cut == {("orders", n): end for n, end in enumerate(ends)}


@dataclass(frozen=True)
class DatedEvents(Dated):
    """A stream of change events; a record is so old as its batch."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        row = EventLake.make_row(change, place)
        assert isinstance(change, Event)
        name = "__debezium.oldkey" if change.moved else "trace"
        headers = [{"key": name, "value": b"{}"}]
        return {**row, "_kafka": {**place, "timestamp": NOW, "headers": headers}}


def test_an_open_dead_letter_of_change_events_holds_the_trimming_for_a_while(
    tmp_path: Path,
) -> None:
    table = {"name": "states.orders", "mode": "upsert", "id_columns": ["id"]}
    with time_machine.travel(NOW - timedelta(days=51)):
        lake = make_state_lake(DatedEvents, tmp_path, "orders", **EVENTS, **KEEP, table=table)
    lake.publish_at(50, (Event(1, "c", 1), Event(1, "u", 2)))
    lake.publish_at(40, (Event(2, BAD, 3), Event(1, "u", 4)))
    lake.publish_at(39, (Event(1, "u", 5),))
    lake.put_state([], lake.position(COUNTS))

    with time_machine.travel(NOW):
        held = lake.expire()
    assert lake.changes_left() == [(0, 1), (0, 3), (0, 4)]
    with time_machine.travel(NOW + timedelta(days=21)):
        released = lake.expire("later")

    assert lake.changes_left() == [(0, 4)]
    assert (held.held_by, released.held_by) == (("orders:0:2",), ())
    assert "read since the open dead letters orders:0:2 are kept" in held.text
    lake.close()


@pytest.mark.parametrize("days_ago", [40, 30])
def test_an_old_batch_of_change_events_that_is_not_merged_keeps_what_it_may_need(
    tmp_path: Path, days_ago: int
) -> None:
    table = {"name": "states.orders", "mode": "upsert", "id_columns": ["id"]}
    with time_machine.travel(NOW - timedelta(days=51)):
        lake = make_state_lake(DatedEvents, tmp_path, "orders", **EVENTS, **KEEP, table=table)
    lake.publish_at(50, (Event(1, "c", 10), Event(1, "d", 100), Event(1, "c", 110)))
    folded = lake.position(COUNTS)
    moved = Event(2, "c", 100, lacks=LARGE, moved=True)
    lake.publish_at(days_ago, (), (moved,))
    lake.publish_at(2, (Event(3, "c", 120),))
    lake.put_state([], folded)

    with time_machine.travel(NOW):
        report = lake.expire()
        assert len(lake.changes_left()) == 5
        lake.put_state([], lake.position(COUNTS))
        merged = lake.expire("later")

    assert "may need values of replaced changes: 1;" in report.text
    assert "`frazil merge orders` first" in report.text
    assert (merged.waiting, (0, 0) in lake.changes_left()) == (0, True)
    lake.close()


def test_a_dead_letter_that_lacks_values_finds_them_after_a_trimming() -> None:
    needs_more = 0
    for sent in map(Sent.make, range(4)):
        lacking = [n for n, row in enumerate(sent.rows) if row["_unavailable"]]
        for letter in lacking:
            cut = {("orders", 0): len(sent.rows)}
            letters = {("orders", 0): np.array([letter])}
            holding = find_holding(sent.stream, {}, cut, letters)
            assert sent.folds(sent.trim(holding["orders", 0], letter)), letter
            needs_more += not sent.folds(sent.trim(len(sent.rows), letter))
    assert needs_more


def fold(rules: StateRules, rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    folded = Fold(rules, rows)
    names = ("name", *LARGE)
    winners = ((key, row) for key, row in folded.winners() if not folded.is_delete(row))
    return {key[0]: {name: row[name] for name in names} for key, row in winners}


@pytest.fixture
def expiring(tmp_path: Path, further: tuple[Change, ...]) -> Iterator[Dated]:
    """Publish keys whose rows are 95 to 4 days old; those of 60 days expire."""
    with time_machine.travel(NOW):
        yield from fill_expiring(tmp_path, further)


def fill_expiring(folder: Path, further: tuple[Change, ...]) -> Iterator[Dated]:
    lake = make_state_lake(Dated, folder, "orders", **SECTIONS["kafka"], **EXPIRE)
    lake.produce(0, Change(1, "c", 1, "old"))
    lake.ingest_all()
    lake.produce(0, Change(1, "u", 5, "older"), Change(2, "c", 2, "x"))
    lake.produce(0, Change(2, "d", 3), Change(2, "u", 4, "again"), Change(3, "c", 5, "kept"))
    lake.produce(1, Change(4, "c", 4, "old"), Change(6, "d", 4), *further)
    lake.produce(0, Change(3, "u", 96, "kept"))
    lake.ingest_all()
    lake.merge()
    yield lake
    lake.close()


def test_expired_keys_leave_all_tables_and_the_next_merge_does_nothing(expiring: Dated) -> None:
    assert expiring.expire("look", dry_run=True).rows == 4

    report = expiring.expire()

    assert (report.rows, expiring.rows()) == (4, {3: ("kept", 0, 6)})
    assert expiring.changes_left() == [(0, 5), (0, 6)]
    assert expiring.deletes_left() == []
    assert expiring.find_wrong() == []
    position = find_position(TableView(expiring.store, expiring.state_name).history, "orders")
    assert plan_merge(expiring.history, expiring.stream, position) is None
    assert expiring.expire("again").rows == 0


def test_a_replay_leaves_expired_keys_out(expiring: Dated) -> None:
    expiring.expire()

    steps, ranges = trace_steps(expiring.history, "orders"), {"orders": {0: OffsetRange(0, 7)}}
    assert list_erased_offsets(steps, ranges) == {"orders": {0: [(0, 5)]}}


def test_a_new_change_of_an_expired_key_is_folded_alone(expiring: Dated) -> None:
    expiring.produce(0, Change(1, "u", 99, "back"))
    expiring.ingest_all()

    expiring.expire()

    position = find_position(TableView(expiring.store, expiring.state_name).history, "orders")
    plan = plan_merge(expiring.history, expiring.stream, position)
    assert plan is not None
    assert plan.added == {"orders": {0: [(7, 8)]}}
    assert (0, 7) in expiring.changes_left()


@pytest.mark.parametrize("further", [(Change(7, BAD, 1), Change(7, "c", 2, "above"))])
def test_a_row_above_an_open_dead_letter_is_kept(expiring: Dated) -> None:
    assert expiring.expire().rows == 4
    assert expiring.rows().keys() == {3, 7}


def test_a_killed_expiry_is_made_up_for_by_the_next_merge(expiring: Dated) -> None:
    before = find_position(TableView(expiring.store, expiring.state_name).history, "orders")
    expiring.expire()

    plan = plan_merge(expiring.history, expiring.stream, before)

    assert plan is not None
    assert plan.added is None
    assert "trim snapshot" in plan.reason


@pytest.mark.parametrize("commits", range(6))
def test_an_expiry_that_ends_at_any_commit_shows_no_older_row(
    expiring: Dated, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    before = fold_rows(expiring)
    monkeypatch.setattr("frazil.maintenance.row_deletion.MAX_RUNS", 1)

    kill_behind(expiring, commits)

    assert before == {1: "older", 2: "again", 3: "kept", 4: "old"}
    assert fold_rows(expiring).items() <= before.items()


def test_a_recorded_delete_that_a_killed_expiry_left_goes_with_the_next_run(
    expiring: Dated, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"topic": "orders", "partition": 0, "offset": 3}
    row = {"id": 2, "_kafka": place, "memory": "m"}
    append(expiring.catalog, expiring.store.load(f"{expiring.state_name}__deletes"), [row])
    with monkeypatch.context() as killed:
        killed.setattr("frazil.maintenance.row_expiry.forget_deletes", lambda *_: None)
        assert expiring.expire().rows == 4
    assert expiring.deletes_left() == [2, 6]

    assert expiring.expire("again").rows == 0
    assert expiring.deletes_left() == []


def test_both_audits_name_a_row_whose_change_is_gone(lake: Dated) -> None:
    lake.table.delete("_kafka.partition == 1 AND _kafka.offset == 1")
    position = lake.position(COUNTS)
    lake.put_state([], position)

    told = [
        Finding(invariant=i, text=text) for i, text in audit_state(lake.store, lake.stream).findings
    ]
    assert {finding.invariant for finding in told} == {"M5"}
    found = audit_state_table(lake.catalog, lake.rules)
    assert {name for name, _ in found} == {"M5"}


def test_a_column_that_the_change_table_got_after_the_merge_does_no_harm(tmp_path: Path) -> None:
    table = {"name": "states.orders", "mode": "upsert", "id_columns": ["id"]}
    with time_machine.travel(NOW - timedelta(days=41)):
        sections = {**SECTIONS["kafka"], **KEEP, "table": table}
        lake = make_state_lake(Dated, tmp_path, "orders", **sections)
    lake.publish_at(40, (Change(1, "c", 1, "first"), Change(1, "u", 5, "last")))
    lake.merge()
    with time_machine.travel(NOW - timedelta(days=2)), lake.table.update_schema() as update:
        update.add_column("_op", StringType())
    lake.publish_at(1, (Change(2, "c", 95, "new"),))
    with time_machine.travel(NOW):
        assert lake.expire("look", dry_run=True).trimmed == 1
    lake.close()
