"""Where the recovery point is kept, and what others do to it (docs/faults.md, C)."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyiceberg.exceptions import ServerError
from support.lake import Lake, make_state, make_stream, make_topic
from support.scripted_catalog import honest, landed_then, overtaken_by

from faults.imagined_kafka import find_broken, find_faults
from frazil.errors import ForeignRollbackError, SupersededError
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch
from frazil.iceberg.commit_retry import commit_once
from frazil.iceberg.table_view import TableView
from frazil.ingest.bootstrap import ensure_table
from frazil.ledger.authors import Author
from frazil.ledger.keys import unpack
from frazil.ledger.offsets import parse_ranges
from frazil.ledger.recovery_point import keys, walk_ancestors
from frazil.ledger.state import Hint, encode_hint, encode_state, parse_state
from frazil.recovery.halt_resolution import reingest
from frazil.workspace import Workspace

STATE = keys.state_key("orders")


def put(lake: Lake, properties: dict[str, str]) -> None:
    """Set table properties as a person would."""
    with lake.table.transaction() as transaction:
        transaction.set_properties(properties)


def append_foreign(lake: Lake) -> None:
    lake.append_foreign(100, 101)


def delete_foreign(lake: Lake) -> None:
    lake.append_foreign(100)
    lake.table.delete("id = 100")


def rewrite_files(lake: Lake) -> None:
    table = lake.table
    table.overwrite(table.scan().to_arrow())


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("foreign", [append_foreign, delete_foreign, rewrite_files])
def test_c2_c3_commits_of_others_at_the_head_hide_no_recovery_point(
    lake: Lake, foreign: Callable[[Lake], None], times: int
) -> None:
    lake.ingest(3, 2)
    for _ in range(times):
        foreign(lake)

    plan = lake.plan(5, 5)
    lake.publish(plan, lake.stage(plan))

    assert plan.offset_ranges["orders"][0].start == 3
    assert lake.coordinates() == [(p, offset) for p in (0, 1) for offset in range(5)]
    assert not find_broken(lake, 5, 5) & {"E2", "E3", "E4", "E5"}


def remove_hint(lake: Lake) -> None:
    with lake.table.transaction() as transaction:
        transaction.remove_properties(keys.hint_key("orders"))


def set_hint_back(lake: Lake) -> None:
    put(lake, {keys.hint_key("orders"): encode_hint(Hint(0, "base", 1))})


@pytest.mark.parametrize("regress", [remove_hint, set_hint_back])
@pytest.mark.parametrize("is_late", [False, True], ids=["before the plan", "before the commit"])
def test_c4_a_property_that_regresses_moves_no_recovery_point(
    lake: Lake,
    regress: Callable[[Lake], None],
    is_late: bool,  # noqa: FBT001
) -> None:
    lake.ingest(3, 2)
    if not is_late:
        regress(lake)
    plan = lake.plan(5, 5)
    staged = lake.stage(plan)
    if is_late:
        lake.catalog.script = [overtaken_by(lambda: regress(lake))]

    lake.publish(plan, staged)

    assert plan.base_epoch == 1
    assert find_faults(lake, 5, 5) == ()


def test_c5_after_a_rollback_exactly_the_rolled_back_range_is_read_again(
    lake: Lake, work: Workspace
) -> None:
    kept = lake.ingest(2, 2).entry.snapshot_id
    lake.ingest(3, 4)
    lake.ingest(6, 6)
    lake.table.manage_snapshots().rollback_to_snapshot(kept).commit()
    with pytest.raises(ForeignRollbackError):
        lake.plan(7, 7)

    reingest(work, Author("jane@example.org", "restore of Tuesday"))
    plan = lake.plan(7, 7)
    lake.publish(plan, lake.stage(plan))

    assert plan.ranges == {"orders": {0: (2, 7), 1: (2, 7)}}
    assert find_faults(lake, 7, 7) == ()


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_c7_a_state_that_is_only_on_a_branch_or_tag_is_no_recovery_point(
    lake: Lake, kind: str
) -> None:
    lake.ingest(3, 2)
    create_branch(lake.store, "demo.orders", "side")
    table = lake.table
    ahead = {STATE: encode_state(make_state({"orders": (9, 9)}, epoch=9, batch="side"))}
    added = commits.build_append(table, ahead)
    side = commits.set_branch("side", added.snapshot.snapshot_id)
    commit_once(lake.store, table, {"side": lake.history.head}, [added, side])
    if kind == "tag":
        lake.table.manage_snapshots().create_tag(added.snapshot.snapshot_id, "kept").commit()
        lake.table.manage_snapshots().remove_branch("side").commit()

    plan = lake.plan(5, 5)

    assert (plan.base_epoch, plan.ranges["orders"][0]) == (1, (3, 5))


def test_c7_main_that_is_moved_to_an_older_tag_halts(lake: Lake) -> None:
    old = lake.ingest(3, 2).entry.snapshot_id
    lake.table.manage_snapshots().create_tag(old, "old").commit()
    lake.ingest(5, 5)

    lake.table.manage_snapshots().set_current_snapshot(ref_name="old").commit()

    with pytest.raises(ForeignRollbackError):
        lake.plan(6, 6)


def test_c8_nothing_local_is_written_or_needed(
    lake: Lake, work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    lake.ingest(3, 2)

    point = TableView(work.store, lake.stream.table.name).find_point("orders")

    assert point == lake.point
    assert not list(tmp_path.iterdir())
    assert {path.name for path in lake.folder.iterdir()} == {"catalog.db", "warehouse"}


@pytest.mark.parametrize("lost", [None, ServerError("502"), KeyboardInterrupt()])
def test_c11_the_start_is_decided_once_even_if_the_first_run_dies_before_its_batch(
    lake: Lake, work: Workspace, lost: BaseException | None
) -> None:
    stream = make_stream("sales", source={"topic": "sales", "start": "latest"})
    first = replace(work, stream=stream)
    if lost is not None:
        # The first commit prepares the dead letters, the second is the bootstrap.
        script = [honest, landed_then(lost)]
        first.store.catalog.script = script  # type: ignore[attr-defined]
    with suppress(KeyboardInterrupt):
        ensure_table(first, [make_topic((5, 5), topic="sales")])

    prepared = ensure_table(replace(work, stream=stream), [make_topic((9, 9), topic="sales")])

    assert prepared.point.state.offsets == {"sales": (5, 5)}
    kinds = [entry.summary.get(keys.KIND) for entry in walk_ancestors(lake.history)]
    assert kinds == [keys.BOOTSTRAP, keys.BOOTSTRAP], "one for each stream"


@pytest.mark.parametrize(
    ("first", "second"),
    [((3, 2), (9, 9)), ((9, 9), (3, 2)), ((3, 0), (0, 2))],
    ids=["cut larger", "cut smaller", "cut elsewhere"],
)
def test_c12_ranges_that_are_cut_anew_between_attempts_neither_overlap_nor_leave_a_gap(
    lake: Lake, first: tuple[int, int], second: tuple[int, int]
) -> None:
    plans = lake.plan(*first), lake.plan(*second)
    stages = [lake.stage(plan) for plan in plans]
    lake.catalog.script = [landed_then(KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        lake.publish(plans[0], stages[0])

    with pytest.raises(SupersededError):
        lake.publish(plans[1], stages[1])
    lake.ingest(10, 10)

    assert find_faults(lake, 10, 10) == ()


@pytest.mark.parametrize("start", ["earliest", "latest", {"offsets": {0: 1, 1: 1}}])
def test_c13_a_start_that_stays_in_the_stream_file_is_applied_once(
    lake: Lake, work: Workspace, start: object
) -> None:
    source = {"topic": "orders", "start": start}
    work = replace(work, stream=make_stream(source=source))
    lake.ingest(3, 2)
    before = lake.table.metadata_location

    points = [ensure_table(work, [make_topic((9, 9))]).point for _ in range(3)]

    assert [point.state.offsets for point in points] == [{"orders": (3, 2)}] * 3
    assert lake.table.metadata_location == before


def test_c10_c14_every_snapshot_names_how_far_every_partition_reaches(
    lake: Lake,
) -> None:
    for ends in ((3, 0), (3, 2), (3, 2, 4), (5, 2, 4)):
        lake.ingest(*ends)

    entries = [e for e in walk_ancestors(lake.history) if keys.RANGES in e.summary][::-1]

    states = [parse_state(entry.summary[STATE]).offsets["orders"] for entry in entries]
    assert states == [(3, 0), (3, 2), (3, 2, 4), (5, 2, 4)]
    rows = [int(entry.summary["total-records"]) for entry in entries]
    assert rows == [sum(offsets) for offsets in states]
    assert json.loads(entries[-1].summary[keys.RANGES]) == {"orders": {"0": [3, 5]}}
    assert find_faults(lake, 5, 2, 4) == ()


@pytest.mark.parametrize(
    ("spread", "kilobytes"), [(1, 20), (10**9, 52)], ids=["alike", "unrelated"]
)
def test_c15_a_batch_of_two_thousand_partitions_is_told_in_a_few_kilobytes(
    lake: Lake, spread: int, kilobytes: int
) -> None:
    dice = Random(15)
    begins = tuple(10**9 + dice.randrange(spread) for _ in range(2000))
    state = make_state({"orders": begins}, epoch=1)
    table, history = lake.table, lake.history
    lake.mark(keys.GAP, {"orders": state}, table, history)
    ends = tuple(begin + 1 + dice.randrange(2) for begin in begins)

    landed = lake.ingest(*ends)

    summary = landed.entry.summary
    assert sum(len(key) + len(value) for key, value in summary.items()) < kilobytes * 1024
    told = parse_ranges(summary[keys.RANGES])["orders"]
    pairs = [(r.start, r.end) for _, r in sorted(told.items())]
    assert pairs == list(zip(begins, ends, strict=True))
    counts = json.loads(unpack(summary[keys.COUNTS]))["orders"]
    widths = [end - begin for begin, end in zip(begins, ends, strict=True)]
    assert counts == {str(n): [width] * 2 for n, width in enumerate(widths)}


def test_c15_two_thousand_idle_partitions_add_little_to_a_snapshot(lake: Lake) -> None:
    idle = (10**9,) * 1999
    state = make_state({"orders": (0, *idle)}, epoch=1)
    table, history = lake.table, lake.history
    lake.mark(keys.GAP, {"orders": state}, table, history)

    landed = lake.ingest(5, *idle)

    assert sum(len(key) + len(value) for key, value in landed.entry.summary.items()) < 8192
    assert lake.point is not None
    assert lake.point.state.offsets["orders"] == (5, *idle)
