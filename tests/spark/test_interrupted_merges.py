"""A merge that was interrupted: the next one counts the same changes, and folds no others."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from conftest import Stack
from support.event_lake import EVENTS, LARGE, Event, EventLake
from support.forked import run_frazil
from support.state_lake import Change, StackStateLake, make_state_lake

from frazil.maintenance.messages import TableResult
from frazil.maintenance.tables import new_request
from frazil.messages import Message
from frazil.state_tables.merge import merge_changes
from frazil.state_tables.messages import MergeCounts
from frazil.state_tables.state_audit import audit_state
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

    assert overtaking.merges == 2
    assert merged.counts == MergeCounts.model_validate(COUNTED)
    assert merged.rebuilt == ""
    assert audit_state(lake.store, lake.stream).findings == ()


class Overtaking:
    """The engine of a workspace; a compaction lands behind the first stage of a merge."""

    def __init__(self, work: Workspace) -> None:
        """Begin with nothing merged."""
        self._work, self._engine, self.merges = work, work.engine, 0

    def run_job(self, name: str, request: Message, result: type[Result]) -> Result:
        answer = self._engine.run_job(name, request, result)
        self.merges += 1
        if self.merges == 1:
            state = self._work.stream.table.state
            assert state is not None
            wanted = new_request(self._work, state.name)
            wanted = wanted.model_copy(update={"rewrite_all": True, "dry_run": False})
            self._engine.run_job("compact_table", wanted, TableResult)
        return answer
