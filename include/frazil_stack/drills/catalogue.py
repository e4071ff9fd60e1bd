"""Drills: cause one failure in a scratch stream, recover as documented, and report the result.

Each drill runs the commands of docs/operate.md against the real Kafka, catalog and Spark (features
B15). It passes only if `frazil audit` finds every record exactly once afterwards.
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

from frazil.connections.lookup import find_connection
from frazil.errors import ConfigurationError, FrazilError, hide_message
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
from frazil_stack.drills.scratch_stream import (
    AUTHOR,
    KILLED,
    Scratch,
    opened_scratch,
    unreachable_catalog,
)
from frazil_stack.drills.source_drill import explain_no_database, kill_merge, opened_database

DEAD_ADDRESS = "http://127.0.0.1:9"


class DrillReport(Report):
    """The injected failure, the observations, and the seconds until rows were published again.

    `recovery_seconds` begin when the failed part is back, or with the command that repairs.
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
        """Describe the result for people."""
        if self.skipped:
            return f"{self.drill}: {self.injected}: skipped: {self.skipped}"
        seconds = f", {self.recovery_seconds:.1f} s to recover" if self.recovery_seconds else ""
        verdict = f"passed{seconds}" if self.passed else f"FAILED: {self.finding}"
        return "\n".join([f"{self.drill}: {self.injected}: {verdict}", *self.seen])


@dataclass(frozen=True)
class Drill:
    """One failure; `run` causes it, recovers, and returns the seconds of the recovery.

    `broker` is the second broker that it needs: none, beside the stream's cluster, or in its place.
    With `source` it has a PostgreSQL, and loads the stream itself.
    """

    injected: str
    run: Callable[[Scratch], float]
    broker: Literal["none", "beside", "instead"] = "none"
    start: int = 0
    source: bool = False


def run_drill(like: Workspace, name: str, *, keep: bool = False) -> DrillReport:
    """Run one drill with the connections of a real stream.

    Raises:
        ConfigurationError: there is no drill of this name.
        FrazilError: the scratch stream could not be created.
    """
    drill = DRILLS.get(name)
    if drill is None:
        raise ConfigurationError(
            f"no drill {name!r}; known: {', '.join(DRILLS)}",
            "`frazil drill` lists the drills with the failure of each",
        )
    if skipped := _explain_missing(drill):
        return DrillReport(
            drill=name, injected=drill.injected, seen=(), passed=False, skipped=skipped
        )
    with _opened_parts(like, drill, keep=keep) as scratch:
        finding, seconds = None, None
        try:
            if not drill.source:
                _load(scratch, 100)
            seconds = round(drill.run(scratch), 1)
            scratch.must_succeed("audit")
        except FrazilError as error:
            finding = error.facts
        except (KafkaException, ValueError, TimeoutExpired) as error:
            finding = hide_message(error).facts
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


def _explain_missing(drill: Drill) -> str | None:
    """Return why this machine cannot start what the drill needs, or None."""
    if drill.source:
        return explain_no_database()
    return explain_no_broker() if drill.broker != "none" else None


@contextmanager
def _opened_parts(like: Workspace, drill: Drill, *, keep: bool) -> Iterator[Scratch]:
    """Open the scratch stream, and before it the broker or the PostgreSQL that the drill needs."""
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="frazil_drill_")))
        broker = parts.enter_context(opened_broker(folder)) if drill.broker != "none" else None
        database = parts.enter_context(opened_database(folder)) if drill.source else None
        scratch = opened_scratch(
            like,
            keep=keep,
            cluster=broker.cluster if broker and drill.broker == "instead" else None,
            broker=broker,
            database=database,
            start=drill.start,
        )
        yield parts.enter_context(scratch)


def _note(like: Workspace, report: DrillReport) -> None:
    """Record the drill on the timeline of the stream whose connections it used."""
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
    """Produce records and publish them."""
    scratch.produce(count)
    scratch.must_succeed("run")


def _recovered(scratch: Scratch, rows: int) -> float:
    """Run a batch, check the rows, and return the seconds of the run."""
    began = time.monotonic()
    scratch.must_succeed("run")
    seconds = time.monotonic() - began
    scratch.expect("rows", scratch.count_rows(), rows)
    return seconds


def _accept_gap(scratch: Scratch, rows: int) -> float:
    """Accept the gap, run a batch, and return the seconds of both."""
    began = time.monotonic()
    scratch.must_succeed("accept-gap", *AUTHOR)
    _recovered(scratch, rows)
    return time.monotonic() - began


def _kill_writer(scratch: Scratch) -> float:
    scratch.produce(50)
    run = scratch.run_command("run", **{FAILPOINT: "publish.before-commit"})
    scratch.expect("the run was killed", run.code, KILLED)
    scratch.expect("visible rows", scratch.count_rows(), 100)
    return _recovered(scratch, 150)


def _lose_answer(scratch: Scratch) -> float:
    scratch.produce(50)
    began = time.monotonic()
    run = scratch.run_command("run", "--json", **_wrap_catalog(scratch, lose_first_answer))
    seconds = time.monotonic() - began
    scratch.expect("the run ended with", run.code, 0)
    scratch.expect("the run reloaded the table; its batch was", run.json["outcome"], "ALREADY")
    scratch.expect("rows", scratch.count_rows(), 150)
    return seconds


def _lose_catalog(scratch: Scratch) -> float:
    scratch.produce(50)
    address = unreachable_catalog({"uri": DEAD_ADDRESS})
    _expect_failure(scratch, {_name_connection(scratch): address}, "CatalogUnavailable")
    return _recovered(scratch, 150)


def _forbid_commits(scratch: Scratch) -> float:
    scratch.produce(50)
    _expect_failure(scratch, _wrap_catalog(scratch, forbid_commits), FORBIDDEN)
    return _recovered(scratch, 150)


def _expect_failure(scratch: Scratch, environment: dict[str, str], cause: str) -> None:
    """Check that a run fails by the injected failure, with a next step and no new row."""
    run = scratch.run_command("run", **environment)
    scratch.expect("the run failed", run.code, 1)
    scratch.expect(f"its error says {cause!r}", cause in run.err, wanted=True)
    scratch.expect("its error names a next step", "Next:" in run.err, wanted=True)
    scratch.expect("visible rows", scratch.count_rows(), 100)


def _wrap_catalog(scratch: Scratch, opened_by: Open) -> dict[str, str]:
    """Return a connection by which one command opens the catalog with faulty commits."""
    given = find_connection(scratch.like.stream.table.connection)
    return {_name_connection(scratch): write_connection(given, opened_by)}


def _name_connection(scratch: Scratch) -> str:
    return f"AIRFLOW_CONN_{scratch.like.stream.table.connection.upper()}"


def _outlive_retention(scratch: Scratch) -> float:
    scratch.produce(50)
    scratch.delete_records(120)
    run = scratch.run_command("run")
    scratch.expect("the run was refused because of a gap", "RetentionGap" in run.err, wanted=True)
    return _accept_gap(scratch, 130)


def _recreate_topic(scratch: Scratch) -> float:
    scratch.recreate_topic()
    scratch.produce(30)
    run = scratch.run_command("run")
    scratch.expect("the run was refused", "TopicRecreated" in run.err, wanted=True)
    return _accept_gap(scratch, 130)


def _break_schema(scratch: Scratch) -> float:
    scratch.produce(50, good=False)
    run = scratch.run_command("run")
    scratch.expect("the run exceeded the error budget", run.code, 1)
    scratch.expect("visible rows", scratch.count_rows(), 100)
    scratch.expect(
        "the next run is blocked", "BatchBlocked" in scratch.run_command("run").err, wanted=True
    )
    value = scratch.document["value"]
    scratch.write_stream(value={**value, "columns": {"id": "string"}})
    run = scratch.run_command("run")
    scratch.expect("another type needs a review", "SchemaReview" in run.err, wanted=True)
    scratch.must_succeed("review-schema", "--stop", *AUTHOR[:4])
    scratch.write_stream(value=value, errors={"max_bad_ratio": 1.0})
    return _recovered(scratch, 100)


def _replay_range(scratch: Scratch) -> float:
    began = time.monotonic()
    offsets = f"{scratch.name}:0:20-60"
    run = scratch.run_command("replay", "--offsets", offsets, "--no-dry-run", "--json")
    seconds = time.monotonic() - began
    scratch.expect("the replay ended with", run.code, 0)
    scratch.expect("rows deleted", run.json["rows_deleted"], 40)
    scratch.expect("rows written", run.json["rows_written"], 40)
    scratch.expect("rows", scratch.count_rows(), 100)
    return seconds


def _roll_back(scratch: Scratch) -> float:
    snapshot = str(scratch.run_command("snapshots", "--json").json[0]["snapshot_id"])
    _load(scratch, 50)
    began = time.monotonic()
    scratch.must_succeed("recover", "--to-snapshot", snapshot, *AUTHOR)
    scratch.expect("rows after the rollback", scratch.count_rows(), 100)
    _recovered(scratch, 150)
    return time.monotonic() - began


DRILLS: dict[str, Drill] = {
    "killed_writer": Drill("kill -9 after staging, before the commit", _kill_writer),
    "lost_commit_answer": Drill("the batch is committed, but the response is lost", _lose_answer),
    "catalog_down": Drill("the catalog does not answer", _lose_catalog),
    "catalog_forbidden": Drill(
        "reads and staging succeed, the commit is refused with 403", _forbid_commits
    ),
    "retention_overtakes": Drill("Kafka deletes records before they are read", _outlive_retention),
    "topic_recreated": Drill("the topic is deleted and created again", _recreate_topic),
    "bad_schema": Drill(
        "records do not fit the columns, then the stream file changes a type", _break_schema
    ),
    "replay": Drill("a range of offsets is read again", _replay_range),
    "mirror_promoted": Drill(
        "a copy of the topic on another cluster takes over, then the first one again",
        promote_mirror,
        broker="beside",
    ),
    "broker_restart": Drill(
        "kill -9 of the broker during a backfill", restart_broker, broker="instead", start=80
    ),
    "rollback": Drill("rows and offsets are rolled back, then read again", _roll_back),
    "merge_killed": Drill(
        "kill -9 of a merge; the state is compared with its source in a PostgreSQL",
        kill_merge,
        source=True,
    ),
}
"""The drills by name, in the order of the list that `frazil drill` prints."""
