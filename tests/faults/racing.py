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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import stamina
import stamina.instrumentation
from pydantic import BaseModel
from stamina.instrumentation import RetryDetails, RetryHook
from support.lake import Lake, passed

from frazil.connections.clients import find_catalog
from frazil.errors import CatalogUnavailableError, FrazilError
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.commits import is_definite_conflict
from frazil.ingest.messages import BatchPlan, NothingToRead, Staged
from frazil.ingest.pipeline import plan_next_batch, publish_staged
from frazil.ledger.recovery_point import keys, walk_ancestors
from frazil.ledger.state import parse_state
from frazil.streams.models import Stream
from frazil.workspace import Workspace

TESTS = Path(__file__).parents[1]
ROWS = 10
ANSWER_SECONDS = 300
HEAD_START_SECONDS = 0.03


class Order(BaseModel):
    """One step for a racer: what, of which stream, and when."""

    step: str
    stream: Stream
    start_at: float = 0.0
    plan: BatchPlan | None = None
    staged: Staged | None = None
    rounds: int = 1
    bootstrap: str = ""


class Answer(BaseModel):
    """How a step ended: the outcomes in order, how often a turn was lost, and the plan if any."""

    outcomes: list[str]
    lost_turns: int = 0
    plan: BatchPlan | None = None


@dataclass(frozen=True)
class RaceLake(Lake):
    """A stream in the catalog that racers and referee share."""

    @cached_property
    def store(self) -> TableStore:
        return TableStore(find_catalog("iceberg_default"))

    @cached_property
    def work(self) -> Workspace:
        return Workspace(self.stream, self.folder, f"racer-{os.getpid()}")

    def account(self) -> "Account":
        """Read rows and batches of the whole table, and main's epochs from the first on."""
        places = self.table.scan(selected_fields=(keys.KAFKA_COLUMN,)).to_arrow().to_pylist()
        key, history = keys.state_key(self.stream.stream), self.history
        summaries = [entry.summary for entry in walk_ancestors(history)][::-1]
        every = [entry.summary for entry in history.entries.values()]
        return Account(
            rows=Counter(
                (place[keys.KAFKA_COLUMN]["partition"], place[keys.KAFKA_COLUMN]["offset"])
                for place in places
            ),
            batches=Counter(s[keys.BATCH_ID] for s in every if keys.BATCH_ID in s),
            epochs=[parse_state(s[key]).epoch for s in summaries if key in s],
        )


@dataclass(frozen=True)
class Account:
    """What a table holds after a race."""

    rows: Counter[tuple[int, int]]
    batches: Counter[str]
    epochs: list[int]


@dataclass(frozen=True)
class Racer:
    """The other end of a racer's pipes."""

    process: "subprocess.Popen[str]"

    def send(self, order: Order) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order.model_dump_json(by_alias=True) + "\n")
        self.process.stdin.flush()

    def has_answered(self) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def read(self) -> Answer:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], ANSWER_SECONDS)[0], "no answer"
        return Answer.model_validate_json(self.process.stdout.readline())


@contextmanager
def start_racers(count: int, environment: Mapping[str, str]) -> Iterator[list[Racer]]:
    """Start racers that see this catalog, and end them with the test."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            env={**os.environ, "PYTHONPATH": str(TESTS), **environment},
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
            process.communicate()


def race(racers: list[Racer], orders: list[Order]) -> list[Answer]:
    """Let every racer start its step at the same moment, and wait for all."""
    start_at = time.time() + HEAD_START_SECONDS
    for racer, order in zip(racers, orders, strict=True):
        racer.send(order.model_copy(update={"start_at": start_at}))
    return [racer.read() for racer in racers]


def connection(extra: Mapping[str, str]) -> str:
    """Write a connection as the environment holds it."""
    return json.dumps({"extra": dict(extra)})


def run_step(order: Order, lake: RaceLake) -> Answer:
    """Run one order at its moment; whatever happens becomes an answer."""
    os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = connection({"bootstrap.servers": order.bootstrap})
    assert lake.store.catalog
    time.sleep(max(0.0, order.start_at - time.time()))
    try:
        return STEPS[order.step](lake, order)
    except FrazilError as error:
        return Answer(outcomes=[error.code])
    except Exception as error:  # noqa: BLE001 - an error without a name of ours fails the race
        return Answer(outcomes=[f"UNMAPPED {type(error).__name__}: {error}"])


def plan_step(lake: RaceLake, _order: Order) -> Answer:
    """Plan, and plan again as Airflow does when a catalog over SQLite answers 5xx to one of two."""
    for attempt in stamina.retry_context(on=CatalogUnavailableError, attempts=5, wait_initial=0.1):
        with attempt:
            planned = plan_next_batch(lake.work)
    if isinstance(planned, NothingToRead):
        return Answer(outcomes=["NOTHING"])
    measured = dict.fromkeys(("used", "began_at_ms", "ended_at_ms"))
    return Answer(outcomes=["PLANNED"], plan=planned.model_copy(update=measured))


def publish_step(lake: RaceLake, order: Order) -> Answer:
    assert order.plan is not None
    assert order.staged is not None
    return Answer(outcomes=[land(lake, order.plan, order.staged)])


def ingest_step(lake: RaceLake, order: Order) -> Answer:
    """Plan, stage and publish one batch after the other, from where the table stands."""
    assert lake.point is not None
    begin = lake.point.state.offsets[order.stream.source.topic][0]
    outcomes = []
    for number in range(1, order.rounds + 1):
        plan = lake.plan(begin + number * ROWS, 0)
        outcomes.append(land(lake, plan, stage_beside_others(lake, plan)))
    return Answer(outcomes=outcomes)


@stamina.retry(on=is_definite_conflict, attempts=20, wait_initial=0.02, wait_max=0.2)
def stage_beside_others(lake: RaceLake, plan: BatchPlan) -> Staged:
    """Stage again when another commit came between, as Spark's writer does by itself."""
    return lake.stage(plan)


def land(lake: RaceLake, plan: BatchPlan, staged: Staged) -> str:
    return publish_staged(lake.work, plan, staged, passed(plan, staged)).outcome


STEPS: Mapping[str, Callable[[RaceLake, Order], Answer]] = {
    "plan": plan_step,
    "publish": publish_step,
    "ingest": ingest_step,
}


def serve() -> None:
    """Take orders until the pipe ends."""
    lakes: dict[str, RaceLake] = {}
    lost: list[RetryDetails] = []

    def keep(details: RetryDetails) -> None:
        lost.append(details)

    hook: RetryHook = keep
    stamina.instrumentation.set_on_retry_hooks([hook])
    for line in sys.stdin:
        order = Order.model_validate_json(line)
        lake = lakes.setdefault(order.stream.stream, RaceLake(Path(), order.stream))
        lost.clear()
        answer = run_step(order, lake).model_copy(update={"lost_turns": len(lost)})
        sys.stdout.write(answer.model_dump_json() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
