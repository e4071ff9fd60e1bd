"""A merge that was interrupted: the next one counts the same changes; slices are not done again."""

import os
import random
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import yaml
from conftest import Stack
from support.event_lake import EVENTS, LARGE, Event, EventLake, Source
from support.forked import run_frazil
from support.overtaken_merges import Overtaking
from support.state_lake import Change, StackStateLake, by_sequence, make_state_lake

from frazil.messages import Message
from frazil.state_tables.merge import merge_changes
from frazil.state_tables.merge_rules import CAME_LATE
from frazil.state_tables.messages import MergeCounts
from frazil.state_tables.state_audit import audit_state
from frazil.streams.models import Stream
from frazil.workspace import Workspace

Result = TypeVar("Result", bound=Message)

Make = Callable[[int, str, int], Change]

pytestmark = pytest.mark.spark
NONE = dict.fromkeys(MergeCounts.model_fields, 0)
STREAMS = ("changes", "events", "marked events")


@pytest.fixture
def name(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return f"i{secrets.token_hex(4)}"


def make_event(key: int, op: str, at: int) -> Event:
    values = {} if op == "d" else {"name": f"{key} {at}"}
    return Event(key, op, at, values=values, lacks=LARGE if op == "u" else ())


def make_change(key: int, op: str, at: int) -> Change:
    return Change(key, op, at, None if op == "d" else f"{key} {at}")


def begin(folder: Path, name: str, kind: str) -> tuple[StackStateLake, Make]:
    """Begin a stream with two merged keys, and publish changes of both and of a new one."""
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"]}
    if kind == "changes":
        lake, make = make_state_lake(StackStateLake, folder, name), make_change
    else:
        table |= {"deletes": "mark" if kind == "marked events" else "remove"}
        lake = make_state_lake(EventLake, folder, name, **{**EVENTS, "table": table})
        make = make_event
    lake.produce(0, make(1, "c", 1), make(2, "c", 2))
    lake.ingest_all()
    lake.merge()
    lake.produce(0, make(1, "u", 3), make(1, "d", 4), make(2, "u", 5), make(3, "d", 6))
    lake.ingest_all()
    return lake, make


COUNTED = {**NONE, "changes": 4, "updated": 1, "deleted": 1, "absent": 1, "superseded": 1}


@pytest.mark.storm(2)
@pytest.mark.parametrize(
    "failpoint", ["merge.after-memory", "merge.after-write", "merge.after-stage"]
)
@pytest.mark.parametrize("kind", STREAMS)
def test_the_merge_after_a_killed_one_counts_the_same_changes(
    stack: Stack, name: str, tmp_path: Path, kind: str, failpoint: str
) -> None:
    lake, make = begin(tmp_path, name, kind)
    environment = {**os.environ, "FRAZIL_HOME": str(stack.home)}
    environment |= {"FRAZIL_STREAMS": str(lake.folder), "FRAZIL_FAILPOINT": failpoint}
    killed = run_frazil(("merge", name), environment, 240)
    assert killed.code == -9 or "SIGKILL" in killed.err, killed.out + killed.err
    lake.produce(0, make(1, "d", 7), make(4, "c", 8))
    lake.ingest_all()

    merged = lake.merge()

    expected = {**COUNTED, "changes": 6, "inserted": 1, "superseded": 2}
    assert merged.counts == MergeCounts.model_validate(expected)
    assert merged.rebuilt == ""
    assert audit_state(lake.store, lake.stream).findings == ()


@pytest.mark.parametrize("kind", STREAMS)
def test_a_merge_that_is_overtaken_counts_its_changes_once(
    name: str, tmp_path: Path, kind: str
) -> None:
    lake, _ = begin(tmp_path, name, kind)
    work = lake.work
    overtaking = Overtaking(work)
    vars(work)["engine"] = overtaking

    merged = merge_changes(work)

    assert overtaking.staged == 2
    assert merged.counts == MergeCounts.model_validate(COUNTED)
    assert merged.rebuilt == ""
    assert audit_state(lake.store, lake.stream).findings == ()


class Interfering:
    """The engine of a workspace; something happens between plan and stage of one attempt."""

    def __init__(self, work: Workspace, happen: Callable[[], None], attempt: int = 1) -> None:
        """Begin with nothing staged."""
        self._engine, self._happen, self._attempt = work.engine, happen, attempt
        self.staged = 0

    def run_job(self, name: str, request: Message, result: type[Result]) -> Result:
        self.staged += 1
        if self.staged == self._attempt:
            self._happen()
        return self._engine.run_job(name, request, result)


@pytest.mark.parametrize("kind", ["changes", "events"])
def test_a_merge_is_planned_again_where_one_with_newer_changes_recorded_deletes_and_was_killed(
    stack: Stack, name: str, tmp_path: Path, kind: str
) -> None:
    lake, make = begin(tmp_path, name, kind)
    environment = {**os.environ, "FRAZIL_HOME": str(stack.home)}
    environment |= {"FRAZIL_STREAMS": str(lake.folder), "FRAZIL_FAILPOINT": "merge.after-memory"}

    def record_newer_delete() -> None:
        lake.produce(0, make(2, "d", 7))
        lake.ingest_all()
        killed = run_frazil(("merge", name), environment, 240)
        assert killed.code == -9 or "SIGKILL" in killed.err, killed.out + killed.err

    work = lake.work
    interfering = Interfering(work, record_newer_delete)
    vars(work)["engine"] = interfering

    merged = merge_changes(work)

    assert audit_state(lake.store, lake.stream).findings == ()
    assert merged.rebuilt == ""
    assert merged.counts is not None
    assert (merged.counts.changes, merged.counts.stale, merged.counts.deleted) == (5, 0, 2)
    assert interfering.staged == 2


def test_a_merge_goes_on_where_one_with_the_same_changes_recorded_deletes_and_was_killed(
    stack: Stack, name: str, tmp_path: Path
) -> None:
    lake, _ = begin(tmp_path, name, "changes")
    environment = {**os.environ, "FRAZIL_HOME": str(stack.home)}
    environment |= {"FRAZIL_STREAMS": str(lake.folder), "FRAZIL_FAILPOINT": "merge.after-memory"}
    killed: list[int] = []

    work = lake.work
    interfering = Interfering(
        work, lambda: killed.append(run_frazil(("merge", name), environment, 240).code)
    )
    vars(work)["engine"] = interfering

    merged = merge_changes(work)

    assert killed[0] != 0
    assert interfering.staged == 1, "two merges with one plan would make each other stale for ever"
    assert merged.counts == MergeCounts.model_validate(COUNTED)
    assert audit_state(lake.store, lake.stream).findings == ()


def test_a_merge_that_met_a_late_event_does_not_fold_all_changes_after_another_one_did(
    name: str, tmp_path: Path
) -> None:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"]}
    sections = {**EVENTS, "order": {"sequence_by": "_source.lsn"}, "table": table}
    lake = make_state_lake(EventLake, tmp_path, name, **sections)
    for at in (2, 1):
        lake.produce(0, make_event(1, "c", at))
        lake.ingest_all()
        if at == 2:
            lake.merge()
    rebuilt: list[str] = []

    def merge_also_a_newer_event() -> None:
        lake.produce(0, make_event(1, "u", 3))
        lake.ingest_all()
        rebuilt.append(lake.merge().rebuilt)

    work = lake.work
    interfering = Interfering(work, merge_also_a_newer_event, attempt=2)
    vars(work)["engine"] = interfering

    merged = merge_changes(work)

    assert rebuilt == [CAME_LATE]
    assert (merged.outcome, interfering.staged) == ("NOTHING", 2)
    assert audit_state(lake.store, lake.stream).findings == ()


def with_slices(lake: StackStateLake, most: int) -> StackStateLake:
    """Merge at most so many changes at once; the file of the stream says so, too."""
    document = yaml.safe_load((lake.folder / f"{lake.stream.stream}.yaml").read_text())
    document["merge"] = {"max_changes": most}
    (lake.folder / f"{lake.stream.stream}.yaml").write_text(yaml.safe_dump(document))
    return replace(lake, stream=Stream.model_validate(document))


def publish_batches(lake: StackStateLake, source: Source, count: int) -> None:
    """Publish changes of the source in batches of ten to twenty events."""
    for _ in range(count):
        for event in source.change(10):
            lake.produce(event.id % 2, event)
        lake.ingest_all()


def test_after_each_slice_the_state_is_the_fold_of_its_changes(name: str, tmp_path: Path) -> None:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"]}
    lake = make_state_lake(EventLake, tmp_path, name, **{**EVENTS, "table": table})
    seed = random.randrange(10**6)
    source, told = Source(random.Random(seed)), list[str]()
    lake = with_slices(lake, 10)

    def look(text: str) -> None:
        told.append(text)
        assert audit_state(lake.store, lake.stream).findings == (), f"seed {seed}"

    for is_first in (True, False):
        told.clear()
        before = len(source.events)
        publish_batches(lake, source, 4)
        merged = merge_changes(lake.work, report=look)

        assert merged.counts is not None
        assert merged.counts.is_balanced
        assert merged.counts.changes == len(source.events) - before
        assert merged.slices == len(told) + 1 > 2, f"seed {seed}"
        assert merged.rebuilt == ("first merge" if is_first else ""), f"seed {seed}"
        assert f"of {merged.counts.changes} changes" in told[0]
        assert lake.values() == source.rows, f"seed {seed}"
        assert audit_state(lake.store, lake.stream).findings == (), f"seed {seed}"
    assert lake.merge().outcome == "NOTHING"


def test_for_a_late_change_event_all_changes_up_to_the_end_of_its_slice_are_folded(
    name: str, tmp_path: Path
) -> None:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"]}
    sections = {**EVENTS, "order": {"sequence_by": "_source.lsn"}, "table": table}
    lake = make_state_lake(EventLake, tmp_path, name, **sections)
    for at in range(1, 6):  # the connector was restarted before the third batch
        sent = [at - 2, at] if at == 3 else [at]
        lake.produce(0, *(make_event(key, "c", each) for each in sent for key in (1, at)))
        lake.ingest_all()
    lake, told = with_slices(lake, 2), list[str]()

    def look(text: str) -> None:
        told.append(text)
        assert audit_state(lake.store, lake.stream).findings == ()

    merged = merge_changes(lake.work, report=look)

    assert merged.counts is not None
    assert (merged.slices, merged.counts.changes) == (5, 2 + 2 + 8 + 2 + 2)
    assert merged.rebuilt == "first merge; a change came after newer ones of its key"
    assert [text.partition(" in ")[0].split(", ")[1] for text in told] == [
        f"{done} of 12 changes" for done in (2, 4, 8, 10)
    ]
    assert audit_state(lake.store, lake.stream).findings == ()
    assert lake.merge().outcome == "NOTHING"


def test_a_killed_merge_goes_on_after_its_last_slice(
    stack: Stack, name: str, tmp_path: Path
) -> None:
    lake = make_state_lake(StackStateLake, tmp_path, name)
    for at in range(3):
        lake.produce(0, make_change(1, "d" if at == 1 else "u", at), make_change(at + 2, "c", at))
        lake.ingest_all()
    lake = with_slices(lake, 2)
    environment = {**os.environ, "FRAZIL_HOME": str(stack.home)}
    environment |= {"FRAZIL_STREAMS": str(lake.folder), "FRAZIL_FAILPOINT": "seal.after-commit"}
    killed = run_frazil(("merge", name), environment, 240)
    assert killed.code == -9 or "SIGKILL" in killed.err, killed.out + killed.err
    assert sorted(lake.rows()) == [1, 2]

    merged = lake.merge()

    assert merged.counts is not None
    assert (merged.slices, merged.counts.changes, merged.rebuilt) == (2, 4, "")
    assert lake.rows() == lake.expected(by_sequence)
    assert audit_state(lake.store, lake.stream).findings == ()


def test_a_delete_that_a_killed_merge_recorded_does_not_count_in_an_earlier_slice(
    stack: Stack, name: str, tmp_path: Path
) -> None:
    lake, make = begin(tmp_path, name, "events")
    lake.produce(0, make(2, "d", 7))
    lake.ingest_all()
    environment = {**os.environ, "FRAZIL_HOME": str(stack.home)}
    environment |= {"FRAZIL_STREAMS": str(lake.folder), "FRAZIL_FAILPOINT": "merge.after-memory"}
    killed = run_frazil(("merge", name), environment, 240)
    assert killed.code == -9 or "SIGKILL" in killed.err, killed.out + killed.err
    lake = with_slices(lake, 4)
    rows = list[set[int]]()

    merged = merge_changes(lake.work, report=lambda _: rows.append({*lake.rows()}))

    assert rows == [{2}]
    assert (merged.slices, merged.rebuilt) == (2, "")
    assert merged.counts is not None
    assert merged.counts.stale == 0
    assert lake.rows() == {}
