"""Users may write the results of tasks: the form, the user and the stream file decide."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, XComArg
from airflow.sdk.bases.decorator import DecoratedOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from frazil.errors import ConfigurationError, FrazilError
from frazil.ingest.messages import BatchPlan
from frazil.maintenance.messages import ErasurePlan
from frazil.messages import Message
from frazil.migration.messages import MovePlan, MoveRequest
from frazil.recovery.messages import (
    BackfillPlan,
    DeadLetterChoice,
    Differences,
    ReplayPlan,
    Window,
)
from frazil_airflow.dag_loading import load_function

pytestmark = pytest.mark.airflow

Dags = dict[str, DAG]
OWN = {"stream": "orders", "table": "shop.orders"}
PLAIN = {"stream": "orders", "dry_run": False}
SIGNED = PLAIN | {"by": "jane", "reason": "request 12"}
RANGES = {"orders": {0: (10, 20)}}
OFFSETS = {"offsets": ["orders:0:10-20"]}
BATCH = BatchPlan(
    **OWN,
    table_uuid="uuid-1",
    base_epoch=1,
    base_batch="b0",
    batch_id="b1",
    ranges=RANGES,
    topic_ids={"orders": "topic-id-1"},
    cluster_id="cluster-1",
    next_offsets={"orders": (20,)},
    schema_id=0,
    spec_id=0,
    suite_hash="",
    stream_hash="",
    transform_version="t",
)
WINDOW = Window(stream="orders", number=1, count=1, ranges=RANGES)


@dataclass(frozen=True)
class Task:
    """A task that is given the plan of the task before, with a form and what it planned."""

    dag: str
    name: str
    form: Mapping[str, object]
    plan: Message
    argument: str = "planned"

    def run(self, plan: Message, **form: object) -> object:
        """Run it in its own DAG."""
        text = plan.model_dump_json()
        planned = text if self.argument == "planned" else json.loads(text)
        function = load_function(self.dag, self.name)
        given = {"params": {**self.form, **form}, "run_id": "r", self.argument: planned}
        return function(**{name: given[name] for name in inspect.signature(function).parameters})

    def run_in_operate(self, dags: Dags, plan: Message) -> object:
        """Run it in the DAG of its stream."""
        finish = cast("DecoratedOperator", dags["operate__orders"].get_task("finish"))
        form = {"reason": None, "by": "jane", **self.form, "action": self.dag}
        planned = plan.model_dump_json()
        return finish.python_callable(stream="orders", planned=planned, params=form, run_id="r")


REPLAY = ReplayPlan(**OWN, dry_run=False, batch=BATCH, differences=Differences(), text="")
BACKFILL = BackfillPlan(**OWN, dry_run=False, windows=(WINDOW,), filled=0, left=0, text="")
CHOICE = DeadLetterChoice(stream="orders", reasons=("bad_key",), dry_run=False)
ERASURE = ErasurePlan(
    **OWN, dry_run=False, by="jane", reason="request 12", rows=1, dead_letters=0, text=""
)
MOVE = MovePlan(**OWN, request=MoveRequest.model_validate(SIGNED), text="")
TASKS = (
    Task("replay", "replay", PLAIN | OFFSETS, REPLAY),
    Task("backfill", "list_windows", PLAIN | OFFSETS, BACKFILL),
    Task("backfill", "fill", PLAIN | OFFSETS, WINDOW, argument="window"),
    Task("replay_dead_letters", "redrive", PLAIN | {"reasons": ["bad_key"]}, CHOICE),
    Task("erase", "erase", SIGNED | {"keys": ["id=1"]}, ERASURE),
    Task("move_cluster", "move", SIGNED, MOVE),
)
IN_OPERATE = tuple(task for task in TASKS if task.argument == "planned")
WRITE_NOTHING = {
    "compare.judge",
    "readiness.judge_stream",
    "verify_source.judge",
    "watch.watch_stream",
}
OTHERS = {
    "stream": "refunds",
    "table": "shop.victim",
    "dry_run": True,
    "by": "the board",
    "reason": "approved",
    "reasons": ["null_value"],
    "ranges": {"orders": {0: (10, 21)}},
    "next": ["orders:0:1"],
}


def change(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field that the form decides, and the plan with another value there."""
    for name, value in document.items():
        if name in OTHERS:
            yield name, document | {name: OTHERS[name]}
        elif isinstance(value, dict):
            yield from ((f"{name}.{n}", document | {name: made}) for n, made in change(value))
        elif name == "windows":
            yield from ((f"windows.{n}", document | {name: [w]}) for n, w in change(value[0]))


def make_dry(plan: Message) -> Message:
    """Return the plan as a dry run makes it."""
    if isinstance(plan, MovePlan):
        return plan.model_copy(update={"request": make_dry(plan.request)})
    return plan.model_copy(update={"dry_run": True} if "dry_run" in type(plan).model_fields else {})


def list_changes(tasks: tuple[Task, ...]) -> list[object]:
    """List every task with every changed plan."""
    return [
        pytest.param(task, task.plan.model_validate(changed), id=f"{task.name}-{name}")
        for task in tasks
        for name, changed in change(task.plan.model_dump(mode="json"))
    ]


@pytest.fixture
def dags(
    write_stream: Callable[..., Path],
    parse: Callable[[], DagBag],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Dags:
    """Parse the DAGs of one stream, with an empty catalog."""
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    extra["warehouse"] = f"file://{tmp_path}"
    connection = json.dumps({"conn_type": "iceberg", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", connection)
    write_stream("orders")
    write_stream("refunds")
    return parse().dags


@pytest.mark.parametrize(("task", "changed"), list_changes(TASKS))
@pytest.mark.usefixtures("dags")
def test_a_plan_that_was_changed_is_refused(task: Task, changed: Message) -> None:
    with pytest.raises(ConfigurationError, match="the plan of the preceding task differs"):
        task.run(changed)


@pytest.mark.parametrize(("task", "changed"), list_changes(IN_OPERATE))
def test_so_it_is_in_the_dag_of_one_stream(dags: Dags, task: Task, changed: Message) -> None:
    with pytest.raises(ConfigurationError, match="the plan of the preceding task differs"):
        task.run_in_operate(dags, changed)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.usefixtures("dags")
def test_a_plan_as_it_was_made_goes_on(task: Task) -> None:
    unreached = pytest.raises(FrazilError, match=r"shop\.orders")  # the catalog has no table
    with nullcontext() if task.name == "list_windows" else unreached:
        task.run(task.plan)


@pytest.mark.usefixtures("dags")
def test_a_choice_of_dead_letters_may_have_several_ranges_of_a_partition() -> None:
    offsets = ("t:0:1-5", "t:0:8-10")
    choice = CHOICE.model_copy(update={"offsets": offsets})
    task = replace(TASKS[3], form={**TASKS[3].form, "offsets": [*offsets]}, plan=choice)

    with pytest.raises(FrazilError, match=r"shop\.orders"):
        task.run(task.plan)


@pytest.mark.parametrize(
    "task",
    [task for task in TASKS if task.dag != "replay_dead_letters"],  # there it only shows letters
    ids=lambda task: task.name,
)
@pytest.mark.usefixtures("dags")
def test_of_a_dry_run_a_task_that_is_cleared_writes_nothing(task: Task) -> None:
    with pytest.raises(ConfigurationError, match="this plan is a dry run"):
        task.run(make_dry(task.plan), dry_run=True)


def test_of_a_dry_run_the_finish_of_a_backfill_that_is_cleared_writes_nothing(dags: Dags) -> None:
    task = replace(TASKS[1], form={**TASKS[1].form, "dry_run": True})

    with pytest.raises(ConfigurationError, match="this plan is a dry run"):
        task.run_in_operate(dags, make_dry(task.plan))


@pytest.mark.usefixtures("dags")
def test_of_a_dry_run_the_task_of_a_merge_that_is_cleared_writes_nothing() -> None:
    with pytest.raises(ConfigurationError, match="this plan is a dry run"):
        load_function("merge", "merge")(params={"stream": "orders"}, run_id="r")


def test_these_are_all_tasks_of_manual_dags_that_are_given_a_result(dags: Dags) -> None:
    given = {
        f"{dag.dag_id}.{task.task_id}"
        for dag in dags.values()
        if not dag.dag_id.startswith("ingest__")
        for task in dag.tasks
        if isinstance(task, MappedOperator) or [*XComArg.iter_xcom_references(task)]
    }

    of_streams = {"operate__orders.finish", "operate__refunds.finish"}
    assert given == {f"{task.dag}.{task.name}" for task in TASKS} | of_streams | WRITE_NOTHING
