"""Maintenance of a state table and its delete memory: the merges go on, no deleted key returns."""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlparse

import pyarrow.parquet as pq
import pytest
from conftest import REPO, Stack
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType
from support.forked import run_frazil
from support.frozen_erasure import commit_then
from support.lake import append
from support.overtaken_merges import Overtaking
from support.planted_values import find_in_files, lists_removed_files
from support.stack_lake import let_days_pass, make_files_old
from support.state_lake import Change, StackStateLake, by_sequence, make_state_lake

from frazil.errors import UnavailableError
from frazil.iceberg.branches import create_branch, drop_branches, name_branch
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger import keys
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.delete_memory import forget_memories
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.maintenance.orphans import remove_orphans
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.messages import Message
from frazil.observability.timeline_table import record_timeline
from frazil.state_tables.merge import merge_changes as run_merge
from frazil.state_tables.merge_rules import find_position
from frazil.state_tables.state_audit import audit_state
from frazil.workspace import Workspace

Result = TypeVar("Result", bound=Message)

pytestmark = [pytest.mark.spark, pytest.mark.stack]
KAFKA = {"topic": "orders", "partition": 0, "offset": 99}


@pytest.fixture
def lake(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackStateLake:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return make_state_lake(StackStateLake, tmp_path, f"m{secrets.token_hex(4)}")


def merge_changes(lake: StackStateLake, *changes: Change) -> None:
    """Produce changes of keys that stay in their partitions, publish and merge them."""
    for change in changes:
        lake.produce(change.id % 2, change)
    lake.ingest_all()
    lake.merge()


def load(lake: StackStateLake, suffix: str = "") -> Table:
    return lake.store.load(lake.state_name + suffix)


def read_ids(lake: StackStateLake, suffix: str) -> Iterator[list[int]]:
    """Return the ids of each data file, in the file's order."""
    table = load(lake, suffix)
    for task in table.scan().plan_files():
        with table.io.new_input(task.file.file_path).open() as stream:
            yield pq.ParquetFile(stream).read(["id"])["id"].to_pylist()


def age(lake: StackStateLake, days: float) -> None:
    """Set back the instants of all tables."""
    names = (lake.state_name, f"{lake.state_name}__deletes", lake.stream.table.name)
    letters = lake.stream.dead_letters_table
    for name in (*names, *([letters] if lake.store.find(letters) else [])):
        named = lake.stream.table.model_copy(update={"name": name})
        stream = lake.stream.model_copy(update={"table": named})
        let_days_pass(replace(lake, stream=stream), days)


@pytest.mark.core
def test_all_three_tables_are_compacted_and_expired_and_the_next_merge_is_incremental(
    lake: StackStateLake,
) -> None:
    for turn in range(3):
        merge_changes(
            lake, *(Change(n, "u", turn, f"{n}/{turn}") for n in range(6)), Change(9, "d", turn)
        )
    before = {
        table.before.table: table.before for table in compact_table(lake.work, dry_run=True).tables
    }
    compacted = {table.before.table: table for table in compact_table(lake.work).tables}
    age(lake, 10)
    expired = {table.table: table for table in expire_snapshots(lake.work).tables}

    state = lake.state_name
    assert (before[state].rows, before[state].hidden_rows) == (6, 12)
    assert compacted[state].rewritten == ("files",)
    assert (compacted[state].after.rows, compacted[state].after.hidden_rows) == (6, 0)
    assert compacted[state].after.delete_files == 0
    assert f"{state}__deletes" in compacted
    assert expired[state].carried_streams == (lake.stream.stream,)
    assert len(load(lake).metadata.snapshots) == 2  # the carry and the head of the cutoff
    assert len(load(lake, "__deletes").metadata.snapshots) == 1
    position = find_position(TableView(lake.store, state).history, lake.stream.stream)
    assert position is not None

    lake.produce(1, Change(9, "c", 1, "late"), Change(1, "d", 9))
    lake.ingest_all()
    assert lake.merge().rebuilt == ""
    assert lake.rows() == lake.expected(by_sequence)
    assert audit_state(lake.store, lake.stream).findings == ()


def test_changes_and_recorded_deletes_are_sorted_by_key(lake: StackStateLake) -> None:
    for turn in range(2):
        changes = [Change(n, "d" if n > 5 else "u", turn, f"{n}/{turn}") for n in (7, 2, 9, 4, 6)]
        merge_changes(lake, *changes)
    before = lake.rows()

    compact_table(lake.work, rewrite_all=True)

    assert [*read_ids(lake, "__changes")] == [[2, 2, 4, 4, 6, 6, 7, 7, 9, 9]]
    assert [*read_ids(lake, "__deletes")] == [[6, 6, 7, 7, 9, 9]]
    assert lake.rows() == before == lake.expected(by_sequence)
    assert audit_state(lake.store, lake.stream).findings == ()


def test_deletes_that_a_rebuild_recorded_again_leave_with_the_snapshots_before_it(
    lake: StackStateLake,
) -> None:
    merge_changes(lake, Change(1, "c", 1, "one"), Change(9, "d", 5))
    for _ in range(2):
        assert lake.merge(rebuild=True).outcome == "MERGED"
    recorded = load(lake, "__deletes").scan().to_arrow()
    assert (recorded["id"].to_pylist(), len({*recorded["memory"].to_pylist()})) == ([9] * 3, 3)

    age(lake, 10)
    planned = expire_snapshots(lake.work, dry_run=True)
    assert "__deletes: snapshots" in planned.text
    assert "would remove 2 recorded deletes of earlier rebuilds" in planned.text
    assert load(lake, "__deletes").scan().count() == 3
    assert "removed 2 recorded deletes of earlier rebuilds" in expire_snapshots(lake.work).text
    left = load(lake, "__deletes").scan().to_arrow()

    position = find_position(TableView(lake.store, lake.state_name).history, lake.stream.stream)
    assert position is not None
    assert left["memory"].to_pylist() == [position.memory]
    merge_changes(lake, Change(9, "c", 4, "older"))
    assert lake.rows() == lake.expected(by_sequence) == {1: ("one", 1, 0)}
    assert audit_state(lake.store, lake.stream).findings == ()


def test_a_memory_that_a_running_merge_may_use_stays(lake: StackStateLake) -> None:
    merge_changes(lake, Change(9, "d", 5))
    row = {"id": 8, "_sequence": {"s0": 1}, "_kafka": KAFKA, "memory": "of a merge that runs"}
    append(lake.catalog, load(lake, "__deletes"), [row])
    branch = name_branch(lake.stream.stream, 9, beside=True)
    create_branch(lake.store, lake.state_name, branch)

    assert forget_memories(lake.work) == 0
    drop_branches(TableView(lake.store, lake.state_name), [branch])
    assert forget_memories(lake.work) == 1
    assert load(lake, "__deletes").scan().to_arrow()["id"].to_pylist() == [9]
    lake.catalog.drop_table(lake.state_name)
    assert forget_memories(lake.work) == 0


def test_files_with_most_deletes_are_rewritten_first(
    lake: StackStateLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_changes(lake, *(Change(n, "c", 1, f"first {n}") for n in range(60)))
    bad, good = (task.file for task in load(lake).scan().plan_files())
    worse = [n for n in range(60) if bucket_of(n) == bad.partition[0]]
    better = [n for n in range(60) if bucket_of(n) == good.partition[0]]
    merge_changes(lake, *(Change(n, "u", 2, f"second {n}") for n in (*worse[:20], *better[:5])))
    monkeypatch.setattr("frazil.maintenance.compaction_rules.PASS_BYTES", 1)
    work = lake.work
    vars(work)["engine"] = Stopping(work, after=1)

    with pytest.raises(UnavailableError):
        compact_table(work)
    left = {task.file.file_path for task in load(lake).scan().plan_files()}
    report = next(
        each for each in compact_table(lake.work).tables if each.before.table == lake.state_name
    )

    assert (bad.file_path in left, good.file_path in left) == (False, True)
    assert "1 delete file hides 5 rows, 1 file with many deletes" in report.before.text
    assert (report.before.debt_files, report.after.debt_files) == (2, 0)
    assert (report.after.delete_files, report.after.hidden_rows) == (0, 0)
    assert lake.rows() == lake.expected(by_sequence)


class Stopping:
    """The engine of a workspace; Spark is gone after so many jobs on the state table."""

    def __init__(self, work: Workspace, after: int) -> None:
        """Begin with nothing done."""
        self._work, self._engine, self._left = work, work.engine, after

    def run_job(self, name: str, request: Message, result: type[Result]) -> Result:
        if self._left == 0:
            raise UnavailableError("Spark does not answer", "run again")
        answer = self._engine.run_job(name, request, result)
        state = self._work.stream.table.state
        assert state is not None
        if getattr(request, "table", None) == state.name:
            self._left -= 1
        return answer


def bucket_of(key: int) -> int | None:
    return BucketTransform(2).transform(LongType())(key)


def test_a_merge_that_a_compaction_overtakes_is_staged_again(lake: StackStateLake) -> None:
    merge_changes(lake, Change(1, "c", 1, "one"), Change(2, "c", 1, "two"))
    lake.produce(1, Change(1, "d", 2))
    lake.ingest_all()
    work = lake.work
    overtaking = Overtaking(work)
    vars(work)["engine"] = overtaking

    merged = run_merge(work)

    assert overtaking.staged == 2
    assert merged.counts is not None
    assert merged.counts.deleted == 1
    assert lake.rows() == {2: ("two", 0, 0)}
    assert audit_state(lake.store, lake.stream).findings == ()


PLANTED, NAME = 7_070_707_070_707, "planted-9f3c71"


def test_after_expiry_and_orphan_removal_no_byte_holds_an_erased_key(lake: StackStateLake) -> None:
    merge_changes(lake, Change(PLANTED, "c", 1, NAME), Change(1, "c", 1, "one"))
    merge_changes(lake, Change(PLANTED, "d", 2, NAME), Change(1, "u", 2, "two"))
    compact_table(lake.work)  # its manifests list removed files beside those that stay
    merge_changes(lake, Change(PLANTED, "u", 3, NAME), Change(2, "c", 1, "three"))
    append_letter(lake, PLANTED, NAME)
    names = (lake.stream.table.name, lake.state_name, f"{lake.state_name}__deletes")
    names += (lake.stream.dead_letters_table,)
    assert [bool(find_planted(lake, name)) for name in names] == [True] * 4
    wanted = ErasureRequest(
        stream=lake.stream.stream,
        keys=(f"id={PLANTED}",),
        by="jane@example.org",
        reason="request 12",
        dry_run=False,
    )

    done = erase(lake.work, plan_erasure(lake.work, wanted), wanted)
    record_timeline(lake.work)
    age(lake, 10)
    expire_snapshots(lake.work)
    for name in names:
        make_files_old(folder_of(lake, name))
    remove_orphans(lake.work)

    assert (done.outcome, done.rows, done.dead_letters) == ("ERASED", 3, 1)
    everywhere = (*names, keys.LEDGER_TABLE, keys.TIMELINE_TABLE)
    assert [path for name in everywhere for path in find_planted(lake, name)] == []
    assert set(lake.rows()) == {1, 2}
    lake.produce(1, Change(1, "d", 9))
    lake.ingest_all()
    assert lake.merge().rebuilt == ""
    assert lake.rows() == {2: ("three", 0, 0)}
    assert audit_state(lake.store, lake.stream).findings == ()


def append_letter(lake: StackStateLake, key: int, name: str) -> None:
    """Append a dead letter of a key's change, as an abandoned attempt leaves it."""
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    kafka = {"topic": "orders", "partition": key % 2, "offset": 0, "key": str(key).encode()}
    row = {"attempt": "abandoned", "value": name.encode(), "_kafka": kafka}
    append(lake.catalog, lake.store.load(lake.stream.dead_letters_table), [row])


def folder_of(lake: StackStateLake, name: str) -> Path:
    return Path(urlparse(lake.store.load(name).location()).path)


def find_planted(lake: StackStateLake, name: str) -> list[Path]:
    """Return the files of a table's folder that have the key or the name."""
    files = (path for path in folder_of(lake, name).rglob("*") if path.is_file())
    return find_in_files(files, (PLANTED, NAME))


@pytest.mark.storm(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "failpoint", ["erase.before-letters", "erase.after-state", "erase.before-manifests"]
)
def test_a_killed_erasure_leaves_the_state_to_the_next_merge_and_the_next_erasure(
    stack: Stack, lake: StackStateLake, failpoint: str, seed: int
) -> None:
    dice = random.Random(seed)
    for at, operation in enumerate("c" + "".join(dice.choices("ud", k=seed)) + "d"):
        others = [Change(n, dice.choice("cud"), dice.randrange(9), f"{n}/{at}") for n in range(4)]
        merge_changes(lake, Change(PLANTED, operation, at, NAME), *others, Change(9, "d", at))
    expected = {n: row for n, row in lake.expected(by_sequence).items() if n != PLANTED}
    who = ("--by", "jane@example.org", "--reason", "request 12", "--no-dry-run")
    command = ("erase", lake.stream.stream, "--key", f"id={PLANTED}", *who)
    environment = {**os.environ, "FRAZIL_HOME": str(stack.home)}
    environment |= {"FRAZIL_STREAMS": str(lake.folder)}

    killed = run_frazil(command, {**environment, "FRAZIL_FAILPOINT": failpoint}, 240)
    assert killed.code == -9, killed.out + killed.err
    merged = lake.merge()
    finished = run_frazil(command, environment, 240)

    assert (merged.rebuilt != "") == (failpoint == "erase.before-letters")
    assert finished.code == 0, finished.out + finished.err
    assert lake.rows() == expected
    for name in (lake.stream.table.name, lake.state_name, f"{lake.state_name}__deletes"):
        table = lake.store.load(name)
        assert PLANTED not in table.scan().to_arrow()["id"].to_pylist()
        assert not lists_removed_files(table)
    assert audit_state(lake.store, lake.stream).findings == ()


WANTED = {
    "keys": [f"id={PLANTED}"],
    "by": "jane@example.org",
    "reason": "request 12",
    "dry_run": False,
}


def test_a_delete_that_a_merge_records_while_its_key_is_erased_is_found(
    lake: StackStateLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_changes(lake, Change(PLANTED, "c", 1, NAME), Change(1, "c", 1, "one"))
    lake.produce(PLANTED % 2, Change(PLANTED, "d", 2))
    stalled = stall_merge(lake)
    assert load(lake, "__deletes").scan().count() == 0
    act = commit_then(lake.state_name, stalled.go_on)
    monkeypatch.setattr(SqlCatalog, "commit_table", act)
    wanted = ErasureRequest.model_validate({**WANTED, "stream": lake.stream.stream})

    done = erase(lake.work, plan_erasure(lake.work, wanted), wanted)

    assert stalled.is_done
    assert (done.outcome, done.rows) == ("ERASED", 2)
    assert PLANTED not in load(lake, "__deletes").scan().to_arrow()["id"].to_pylist()
    lake.merge()
    assert lake.rows() == {1: ("one", 1, 1)}
    assert audit_state(lake.store, lake.stream).findings == ()


@pytest.mark.storm(1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("failpoint", ["remove.before-commit", "remove.after-commit"])
def test_an_erasure_that_is_killed_in_its_second_search_is_finished_by_the_next(
    lake: StackStateLake, failpoint: str, seed: int
) -> None:
    dice = random.Random(seed)
    for at in range(seed + 1):
        others = [Change(n, dice.choice("cu"), dice.randrange(9), f"{n}/{at}") for n in range(4)]
        merge_changes(lake, Change(PLANTED, "u", at, NAME), *others)
    lake.produce(PLANTED % 2, Change(PLANTED, "d", 9), Change(dice.randrange(4), "d", 9))
    expected = {n: row for n, row in lake.expected(by_sequence).items() if n != PLANTED}
    stalled = stall_merge(lake)
    wanted = {**WANTED, "stream": lake.stream.stream}
    with frozen_erasure(lake, wanted, FRAZIL_FAILPOINT=failpoint) as erasure:
        stalled.go_on()
        erasure.send_signal(signal.SIGCONT)
        assert erasure.wait(240) == -signal.SIGKILL
    is_there = PLANTED in load(lake, "__deletes").scan().to_arrow()["id"].to_pylist()
    assert is_there == (failpoint == "remove.before-commit")
    lake.merge()
    request = ErasureRequest.model_validate(wanted)
    erase(lake.work, plan_erasure(lake.work, request), request)

    assert lake.rows() == expected
    for suffix in ("", "__changes", "__deletes"):
        assert PLANTED not in load(lake, suffix).scan().to_arrow()["id"].to_pylist()
        assert not lists_removed_files(load(lake, suffix))
    assert audit_state(lake.store, lake.stream).findings == ()


@contextmanager
def frozen_erasure(
    lake: StackStateLake, request: dict[str, object], **environment: str
) -> Iterator["subprocess.Popen[str]"]:
    """Start an erasure, give it when it stands still behind its commit on the state, and end it."""
    stream = lake.stream.model_dump(mode="json", by_alias=True, exclude_unset=True)
    given = {"folder": str(lake.folder), "stream": stream, "request": request}
    process = subprocess.Popen(
        [sys.executable, str(REPO / "tests" / "support" / "frozen_erasure.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1]), "it ended"
        yield process
    finally:
        process.kill()
        process.wait()


def stall_merge(lake: StackStateLake) -> "Stalled":
    """Publish what was produced, and plan a merge whose job has not begun."""
    lake.ingest_all()
    stalled = Stalled(work := lake.work)
    vars(work)["engine"] = stalled
    with pytest.raises(UnavailableError):
        run_merge(work)
    return stalled


class Stalled:
    """The engine of a workspace whose job begins later than its process waits."""

    def __init__(self, work: Workspace) -> None:
        """Begin with no job."""
        self._engine, self.is_done = work.engine, False
        self._job: Callable[[], Message] | None = None

    def run_job(self, name: str, request: Message, result: type[Result]) -> Result:
        self._job = partial(self._engine.run_job, name, request, result)
        raise UnavailableError("Spark does not answer", "run again")

    def go_on(self) -> None:
        self.is_done = True
        assert self._job is not None
        self._job()
