"""Drills: break a scratch stream in one known way, mend it as documented, and say how it went.

Each drill is what an operator would type (docs/operate.md), on real parts, beside the real streams
(features B15). It passes only if `frazil audit` finds every record exactly once afterwards.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Literal

from confluent_kafka import KafkaException

from frazil.connections import find_connection
from frazil.errors import ConfigurationError, FrazilError
from frazil.events import Event, note_event
from frazil.failpoints import VARIABLE as FAILPOINT
from frazil.messages import Report
from frazil.workspace import Workspace
from frazil_stack.drills.cluster_drills import promote_mirror, restart_broker
from frazil_stack.drills.faulty_catalog import (
    FORBIDDEN,
    Open,
    forbid_commits,
    lose_first_answer,
    write_connection,
)
from frazil_stack.drills.scratch_broker import explain_no_broker, opened_broker
from frazil_stack.drills.scratch_stream import AUTHOR, Scratch, opened_scratch, refused

KILLED = -9
DEAD_ADDRESS = "http://127.0.0.1:9"


class DrillReport(Report):
    """What was injected, what was seen, how long it took until rows were published again.

    `recovery_seconds` begin where the part is there again, or the mending command is typed.
    """

    drill: str
    injected: str
    seen: tuple[str, ...]
    passed: bool
    skipped: str | None = None
    finding: str | None = None
    recovery_seconds: float | None = None

    @property
    def text(self) -> str:
        """Say it for people."""
        if self.skipped:
            return f"{self.drill}: {self.injected}: skipped: {self.skipped}"
        took = f"{self.recovery_seconds:.1f} s to recover" if self.recovery_seconds else ""
        verdict = f"passed, {took}" if self.passed else f"FAILED: {self.finding}"
        return "\n".join([f"{self.drill}: {self.injected}: {verdict}", *self.seen])


@dataclass(frozen=True)
class Drill:
    """One known way to break a stream; `run` gives the seconds until it was well again.

    `broker` says whether it needs one of its own: beside the stream's cluster, or in its place.
    """

    injected: str
    run: Callable[[Scratch], float]
    broker: Literal["none", "beside", "instead"] = "none"
    start: int = 0


def run_drill(like: Workspace, name: str, *, keep: bool = False) -> DrillReport:
    """Run one drill with the connections of a real stream.

    Raises:
        ConfigurationError: no drill has this name.
        FrazilError: the scratch stream could not be made.
    """
    drill = DRILLS.get(name)
    if drill is None:
        raise ConfigurationError(
            f"no drill is named {name!r}; there are {', '.join(DRILLS)}",
            "choose one of them",
        )
    skipped = explain_no_broker() if drill.broker != "none" else None
    if skipped:
        return DrillReport(
            drill=name, injected=drill.injected, seen=(), passed=False, skipped=skipped
        )
    with _opened_parts(like, drill, keep=keep) as scratch:
        finding, seconds = None, None
        try:
            _load(scratch, 100)
            seconds = round(drill.run(scratch), 1)
            scratch.must_do("audit")
        except FrazilError as error:
            finding = error.facts
        except (KafkaException, ValueError, TimeoutExpired) as error:  # no answer, or a strange one
            finding = f"{type(error).__name__}: {error}"
        seen = tuple(scratch.seen)
    report = DrillReport(
        drill=name,
        injected=drill.injected,
        seen=seen,
        passed=finding is None,
        finding=finding,
        recovery_seconds=seconds,
    )
    _note(like, report)
    return report


@contextmanager
def _opened_parts(like: Workspace, drill: Drill, *, keep: bool) -> Iterator[Scratch]:
    """Open the scratch stream, and before it a broker where the drill needs one."""
    with ExitStack() as parts:
        broker = None
        if drill.broker != "none":
            folder = parts.enter_context(tempfile.TemporaryDirectory(prefix="frazil_drill_"))
            broker = parts.enter_context(opened_broker(Path(folder)))
        cluster = broker.cluster if broker and drill.broker == "instead" else None
        scratch = opened_scratch(like, keep=keep, cluster=cluster, broker=broker, start=drill.start)
        yield parts.enter_context(scratch)


def _note(like: Workspace, report: DrillReport) -> None:
    """Note the drill on the timeline of the stream whose connections it used."""
    event = Event(
        event_id=f"drill:{report.drill}:{like.run_id}",
        at=datetime.now(UTC),
        stream=like.stream.stream,
        table=like.stream.table.name,
        kind="drill",
        text=report.text.partition("\n")[0],
        run_id=like.run_id,
        facts={"verdict": "passed" if report.passed else "failed"},
    )
    note_event(event)


def _load(scratch: Scratch, count: int) -> None:
    """Let records come and publish them."""
    scratch.produce(count)
    scratch.must_do("run")


def _recovered(scratch: Scratch, rows: int) -> float:
    """Run again and see the rows; give the seconds that took."""
    began = time.monotonic()
    scratch.must_do("run")
    seconds = time.monotonic() - began
    scratch.expect("rows", scratch.count_rows(), rows)
    return seconds


def _accept_gap(scratch: Scratch, rows: int) -> float:
    """Record the loss, read on, and give the seconds that both took."""
    began = time.monotonic()
    scratch.must_do("accept-gap", *AUTHOR)
    _recovered(scratch, rows)
    return time.monotonic() - began


def _kill_writer(scratch: Scratch) -> float:
    scratch.produce(50)
    run = scratch.type_in("run", **{FAILPOINT: "publish.before-commit"})
    scratch.expect("the run was killed", run.code, KILLED)
    scratch.expect("rows that are visible", scratch.count_rows(), 100)
    return _recovered(scratch, 150)


def _lose_answer(scratch: Scratch) -> float:
    scratch.produce(50)
    began = time.monotonic()
    run = scratch.type_in("run", "--json", **_spoil(scratch, lose_first_answer))
    seconds = time.monotonic() - began
    scratch.expect("the run ended with", run.code, 0)
    scratch.expect("it looked again, and its batch was", run.json["outcome"], "ALREADY")
    scratch.expect("rows", scratch.count_rows(), 150)
    return seconds


def _lose_catalog(scratch: Scratch) -> float:
    scratch.produce(50)
    address = refused({"uri": DEAD_ADDRESS})
    _refuse_run(scratch, {_name_connection(scratch): address}, "CatalogUnavailable")
    return _recovered(scratch, 150)


def _forbid_commits(scratch: Scratch) -> float:
    scratch.produce(50)
    _refuse_run(scratch, _spoil(scratch, forbid_commits), FORBIDDEN)
    return _recovered(scratch, 150)


def _refuse_run(scratch: Scratch, environment: dict[str, str], cause: str) -> None:
    """See that a run fails by what was injected, says what to do, and shows no row."""
    run = scratch.type_in("run", **environment)
    scratch.expect("the run failed", run.code, 1)
    scratch.expect(f"its error says {cause!r}", cause in run.err, wanted=True)
    scratch.expect("its error names a next step", "Next:" in run.err, wanted=True)
    scratch.expect("rows that are visible", scratch.count_rows(), 100)


def _spoil(scratch: Scratch, opened_by: Open) -> dict[str, str]:
    """Let one command open the stream's own catalog by a function that spoils its commits."""
    given = find_connection(scratch.like.stream.table.connection)
    return {_name_connection(scratch): write_connection(given, opened_by)}


def _name_connection(scratch: Scratch) -> str:
    return f"AIRFLOW_CONN_{scratch.like.stream.table.connection.upper()}"


def _outlive_retention(scratch: Scratch) -> float:
    scratch.produce(50)
    scratch.delete_records(120)
    run = scratch.type_in("run")
    scratch.expect("the run was refused for a gap", "RetentionGap" in run.err, wanted=True)
    return _accept_gap(scratch, 130)


def _recreate_topic(scratch: Scratch) -> float:
    scratch.recreate_topic()
    scratch.produce(30)
    run = scratch.type_in("run")
    scratch.expect("the run was refused", "TopicRecreated" in run.err, wanted=True)
    return _accept_gap(scratch, 130)


def _break_schema(scratch: Scratch) -> float:
    scratch.produce(50, good=False)
    run = scratch.type_in("run")
    scratch.expect("the run was stopped by its budget", run.code, 1)
    scratch.expect("rows that are visible", scratch.count_rows(), 100)
    scratch.expect(
        "the next run is blocked", "BatchBlocked" in scratch.type_in("run").err, wanted=True
    )
    value = scratch.document["value"]
    scratch.write_stream(value={**value, "columns": {"id": "string"}})
    run = scratch.type_in("run")
    scratch.expect("another type is a question", "SchemaReview" in run.err, wanted=True)
    scratch.must_do("review-schema", "--stop", *AUTHOR[:4])
    scratch.write_stream(value=value, errors={"max_bad_ratio": 1.0})
    return _recovered(scratch, 100)


def _replay_range(scratch: Scratch) -> float:
    began = time.monotonic()
    chosen = f"{scratch.name}:0:20-60"
    run = scratch.type_in("replay", "--offsets", chosen, "--no-dry-run", "--json")
    seconds = time.monotonic() - began
    scratch.expect("the replay ended with", run.code, 0)
    scratch.expect("rows that gave way", run.json["rows_deleted"], 40)
    scratch.expect("rows in their place", run.json["rows_written"], 40)
    scratch.expect("rows", scratch.count_rows(), 100)
    return seconds


def _roll_back(scratch: Scratch) -> float:
    snapshot = str(scratch.type_in("snapshots", "--json").json[0]["snapshot_id"])
    _load(scratch, 50)
    began = time.monotonic()
    scratch.must_do("recover", "--to-snapshot", snapshot, *AUTHOR)
    scratch.expect("rows after going back", scratch.count_rows(), 100)
    _recovered(scratch, 150)
    return time.monotonic() - began


DRILLS: dict[str, Drill] = {
    "killed_writer": Drill("kill -9 before the commit, rows are staged", _kill_writer),
    "lost_commit_answer": Drill("the batch is committed, and the answer is lost", _lose_answer),
    "catalog_down": Drill("nothing answers at the catalog's address", _lose_catalog),
    "catalog_forbidden": Drill(
        "reads and staging pass, the commit of the batch is refused with 403", _forbid_commits
    ),
    "retention_overtakes": Drill("records are deleted before they were read", _outlive_retention),
    "topic_recreated": Drill("the topic is deleted and created again", _recreate_topic),
    "bad_schema": Drill(
        "a producer sends what no column takes, and the file asks for another type", _break_schema
    ),
    "replay": Drill("a known range is read again", _replay_range),
    "mirror_promoted": Drill(
        "a copy of the topic on another cluster takes over, and gives back",
        promote_mirror,
        broker="beside",
    ),
    "broker_restart": Drill(
        "kill -9 of the broker during a backfill", restart_broker, broker="instead", start=80
    ),
    "rollback": Drill("rows and offsets go back, and come again", _roll_back),
}
"""Name → drill; each is a headline of docs/operate.md."""
