"""Racers: processes of their own that run the product's steps at a given moment.

A racer lives for all rounds of a race, so that its imports are paid once. It takes one order per
line on its standard input and answers with one line: how the step ended.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import stamina.instrumentation
from pydantic import BaseModel

from frazil import keys
from frazil.bootstrap import ensure_table
from frazil.branches import create_branch, name_branch
from frazil.contracts import BatchPlan, NothingToRead, PartitionCount, Published, Staged, Verdict
from frazil.errors import FrazilError
from frazil.ingest import plan_next_batch, publish_staged
from frazil.kafka_log import PartitionOffsets, TopicFacts
from frazil.ledger import find_recovery_point, walk_ancestors
from frazil.offsets import iterate_ranges
from frazil.planning import PlanInput, TableFacts, plan_batch
from frazil.publishing import load_with_history
from frazil.state import parse_state
from frazil.streams import Stream
from frazil.tables import TableStore
from frazil.workspace import Workspace

ROWS = 10
ANSWER_SECONDS = 120
HEAD_START_SECONDS = 0.03


class Order(BaseModel):
    """One step for a racer: what, of which stream, and when."""

    step: str
    document: dict[str, object]
    start_at: float = 0.0
    plan: BatchPlan | None = None
    staged: Staged | None = None
    rounds: int = 1


class Answer(BaseModel):
    """How a step ended: the outcomes in order, how often a turn was lost, and the plan if any."""

    outcomes: list[str]
    lost_turns: int = 0
    plan: BatchPlan | None = None


@dataclass(frozen=True)
class Racer:
    """The other end of a racer's pipes."""

    process: "subprocess.Popen[str]"

    def send(self, order: Order) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order.model_dump_json() + "\n")
        self.process.stdin.flush()

    def has_answered(self) -> bool:
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def read(self) -> Answer:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], ANSWER_SECONDS)[0], "no answer"
        return Answer.model_validate_json(self.process.stdout.readline())


@contextmanager
def start_racers(count: int, environment: Mapping[str, str]) -> Iterator[list[Racer]]:
    """Start racers that see this catalog and this broker, and end them with the test."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        yield [Racer(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def race(racers: list[Racer], orders: list[Order]) -> list[Answer]:
    """Let every racer start its step at the same moment, and wait for all."""
    start_at = time.time() + HEAD_START_SECONDS
    for racer, order in zip(racers, orders, strict=True):
        racer.send(order.model_copy(update={"start_at": start_at}))
    return [racer.read() for racer in racers]


def connections(catalog: Mapping[str, str], bootstrap: str = "127.0.0.1:1") -> dict[str, str]:
    """Write the Airflow connections that a racer resolves."""
    return {
        "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps({"extra": dict(catalog)}),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"extra": {"bootstrap.servers": bootstrap}}),
    }


def open_race(document: Mapping[str, object], run_id: str) -> Workspace:
    """Open a stream without a file."""
    return Workspace(Stream.model_validate(document), Path(), run_id)


def pretend_topic(name: str, end: int) -> TopicFacts:
    """Describe a topic of one partition; the publishers never look at Kafka."""
    return TopicFacts(name, f"id-of-{name}", "a-cluster", (PartitionOffsets(0, end),))


def plan_rows(work: Workspace, rows: int = ROWS) -> BatchPlan:
    """Plan the next rows on the recovery point, bootstrapping first."""
    name = work.stream.source.topic
    ensure_table(work, pretend_topic(name, 0))
    table, history = load_with_history(work.store, work.stream.table.name)
    point = find_recovery_point(history, work.stream.stream)
    assert point is not None
    end = point.state.offsets[name][0] + rows
    metadata = table.metadata
    facts = TableFacts(
        str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id
    )
    plan = plan_batch(PlanInput(work.stream, point.state, pretend_topic(name, end), facts, ""))
    assert isinstance(plan, BatchPlan)
    return plan


def stage_rows(store: TableStore, plan: BatchPlan) -> Staged:
    """Stage the plan's rows on a branch of their own, as Spark would."""
    branch = name_branch(plan.stream, plan.base_epoch)
    head = create_branch(store, plan.table, branch)
    table = store.load(plan.table)
    rows = list(make_rows(plan))
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()), branch=branch)
    ref = store.load(plan.table).metadata.refs[branch]
    counts = tuple(
        PartitionCount(topic=topic, partition=p, rows_read=r.width, rows_good=r.width)
        for topic, p, r in iterate_ranges(plan.offset_ranges)
    )
    return Staged(
        stream=plan.stream,
        batch_id=plan.batch_id,
        attempt=branch,
        snapshot_id=ref.snapshot_id,
        base_head=head,
        rows_read=len(rows),
        rows_written=len(rows),
        rows_quarantined=0,
        rows_skipped=0,
        partitions=counts,
    )


def make_rows(plan: BatchPlan) -> Iterator[dict[str, object]]:
    """Make one row per planned offset."""
    for topic, partition, offsets in iterate_ranges(plan.offset_ranges):
        for offset in range(offsets.start, offsets.end):
            place = {"topic": topic, "partition": partition, "offset": offset}
            yield {"id": offset, "name": f"n{offset}", "amount": 0.5, keys.KAFKA_COLUMN: place}


def judge_good(plan: BatchPlan, staged: Staged) -> Verdict:
    """Let the batch pass."""
    return Verdict(
        stream=plan.stream, batch_id=plan.batch_id, attempt=staged.attempt, outcome="passed"
    )


@dataclass(frozen=True)
class Account:
    """What main holds after a race."""

    coordinates: list[tuple[int, int]]
    batches: list[str]
    epochs: list[int]
    branches: list[str]


def take_account(store: TableStore, stream: str, name: str) -> Account:
    """Read rows, batch ids and epochs along main's ancestry, oldest first."""
    table, history = load_with_history(store, name)
    places = table.scan(selected_fields=(keys.KAFKA_COLUMN,)).to_arrow()[keys.KAFKA_COLUMN]
    entries = list(walk_ancestors(history))[::-1]
    key = keys.state_key(stream)
    return Account(
        coordinates=sorted((p["partition"], p["offset"]) for p in places.to_pylist()),
        batches=[e.summary[keys.BATCH_ID] for e in entries if keys.BATCH_ID in e.summary],
        epochs=[parse_state(e.summary[key]).epoch for e in entries if key in e.summary],
        branches=[ref for ref in table.metadata.refs if ref != "main"],
    )


def _run(order: Order, opened: dict[str, Workspace]) -> Answer:
    """Run one order at its moment; whatever happens becomes an answer."""
    name = str(order.document["stream"])
    work = opened.setdefault(name, open_race(order.document, f"racer-{os.getpid()}"))
    assert work.store.catalog
    time.sleep(max(0.0, order.start_at - time.time()))
    try:
        return STEPS[order.step](work, order)
    except FrazilError as error:
        return Answer(outcomes=[error.code])
    except Exception as error:  # noqa: BLE001 - an error without a name of ours fails the race
        return Answer(outcomes=[f"UNMAPPED {type(error).__name__}: {error}"])


def _plan(work: Workspace, _order: Order) -> Answer:
    planned = plan_next_batch(work)
    if isinstance(planned, NothingToRead):
        return Answer(outcomes=["NOTHING"])
    return Answer(outcomes=["PLANNED"], plan=planned)


def _publish(work: Workspace, order: Order) -> Answer:
    assert order.plan is not None
    assert order.staged is not None
    return Answer(outcomes=[_land(work, order.plan, order.staged).outcome])


def _ingest(work: Workspace, order: Order) -> Answer:
    """Plan, stage and publish one batch after the other."""
    outcomes = []
    for _ in range(order.rounds):
        plan = plan_rows(work)
        outcomes.append(_land(work, plan, stage_rows(work.store, plan)).outcome)
    return Answer(outcomes=list(outcomes))


def _land(work: Workspace, plan: BatchPlan, staged: Staged) -> Published:
    return publish_staged(work, plan, staged, judge_good(plan, staged))


STEPS: Mapping[str, Callable[[Workspace, Order], Answer]] = {
    "plan": _plan,
    "publish": _publish,
    "ingest": _ingest,
}


def serve() -> None:
    """Take orders until the pipe ends."""
    opened: dict[str, Workspace] = {}
    lost: list[object] = []
    stamina.instrumentation.set_on_retry_hooks([lost.append])
    for line in sys.stdin:
        lost.clear()
        answer = _run(Order.model_validate_json(line), opened)
        sys.stdout.write(answer.model_copy(update={"lost_turns": len(lost)}).model_dump_json())
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
