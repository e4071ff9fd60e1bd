"""The executor takes no more tasks than it has slots, so that the next one is chosen by weight."""

import multiprocessing
import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from frazil_airflow.executor import WarmLocalExecutor


def make_workload(task: str, weight: int) -> SimpleNamespace:
    from airflow.models.taskinstancekey import TaskInstanceKey  # noqa: PLC0415 - see below

    key = TaskInstanceKey("ingest__orders", task, "run")
    return SimpleNamespace(key=key, ti=SimpleNamespace(priority_weight=weight, key=key))


@pytest.fixture(scope="module", autouse=True)
def database() -> None:
    """Make the tables of runs in the database that these tests' Airflow has not."""
    from airflow import settings  # noqa: PLC0415 - after the environment
    from airflow.models import import_all_models  # noqa: PLC0415 - likewise
    from airflow.models.base import Base  # noqa: PLC0415 - likewise

    import_all_models()
    Base.metadata.create_all(settings.engine)


def start_without_workers(monkeypatch: pytest.MonkeyPatch, slots: int) -> "WarmLocalExecutor":
    """Start an executor that keeps what it has taken: no worker takes anything."""
    from airflow.executors.local_executor import LocalExecutor  # noqa: PLC0415 - after the

    from frazil_airflow.executor import WarmLocalExecutor  # noqa: PLC0415 - environment

    monkeypatch.setattr(LocalExecutor, "_spawn_workers_with_gc_freeze", lambda *_: None)
    monkeypatch.setattr(LocalExecutor, "_check_workers", lambda *_: None)
    executor = WarmLocalExecutor(parallelism=slots)
    executor.start()
    return executor


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Airflow's modules back what a start puts into them."""
    from airflow.sdk.execution_time import (  # noqa: PLC0415 - see below
        comms,
        supervisor,
        task_runner,
    )
    from pydantic import TypeAdapter  # noqa: PLC0415 - likewise

    for module in (comms, task_runner):
        monkeypatch.setattr(module, "TypeAdapter", TypeAdapter)
    start = supervisor.ActivitySubprocess._on_child_started  # noqa: SLF001 - what a start wraps
    monkeypatch.setattr(supervisor.ActivitySubprocess, "_on_child_started", start)


def test_a_task_waits_outside_until_a_slot_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.utils.state import TaskInstanceState  # noqa: PLC0415 - after the environment

    executor = start_without_workers(monkeypatch, slots=2)
    plans = [make_workload(f"plan{n}", 2) for n in range(3)]
    executor.queued_tasks = {plan.key: plan for plan in plans}

    executor.heartbeat()
    executor.heartbeat()
    publish = make_workload("publish", 5)
    executor.queued_tasks[publish.key] = publish
    first = min(executor.running, key=lambda key: key.task_id)
    executor.change_state(first, TaskInstanceState.SUCCESS)
    executor.heartbeat()

    assert len(executor.running) == 2
    assert publish.key in executor.running
    assert [*executor.queued_tasks] == [plans[2].key]
    assert executor.slots_available < 1


def test_without_a_free_slot_a_turn_of_the_scheduler_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.utils.state import TaskInstanceState  # noqa: PLC0415 - after the environment

    from frazil_airflow import executor as module  # noqa: PLC0415 - likewise

    monkeypatch.setattr(module, "FULL_SECONDS", 60)
    executor = start_without_workers(monkeypatch, slots=1)
    plan = make_workload("plan", 2)
    executor.queued_tasks = {plan.key: plan}
    ended = (plan.key, TaskInstanceState.SUCCESS, None)
    timer = threading.Timer(0.2, executor.result_queue.put, (ended,))

    timer.start()
    executor.heartbeat()
    timer.join()

    assert executor.slots_available == 1
    assert [*executor.get_event_buffer()] == [plan.key]


def test_runs_in_which_a_task_has_ended_are_looked_at_before_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.models.dagrun import DagRun  # noqa: PLC0415 - after the environment
    from airflow.utils.session import create_session  # noqa: PLC0415 - likewise
    from airflow.utils.state import TaskInstanceState  # noqa: PLC0415 - likewise
    from sqlalchemy import select  # noqa: PLC0415 - likewise

    looked_at = datetime(2026, 11, 24, tzinfo=UTC)
    with create_session() as session:
        for hour, dag in enumerate(("ingest__events", "ingest__orders")):
            run = DagRun(dag_id=dag, run_id="run", run_type="manual", run_after=looked_at)
            run.last_scheduling_decision = looked_at.replace(hour=hour)
            session.add(run)
    executor = start_without_workers(monkeypatch, slots=1)

    executor.change_state(make_workload("plan", 2).key, TaskInstanceState.SUCCESS)
    executor.heartbeat()

    order = select(DagRun.dag_id).order_by(DagRun.last_scheduling_decision)
    unseen = select(DagRun.dag_id).where(DagRun.last_scheduling_decision.is_(None))
    with create_session() as session:
        assert [*session.scalars(order)] == ["ingest__orders", "ingest__events"]
        assert not [*session.scalars(unseen)]


def test_the_slots_of_a_dead_worker_are_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.executors.local_executor import LocalExecutor  # noqa: PLC0415 - see above

    from frazil_airflow.executor import WarmLocalExecutor  # noqa: PLC0415 - likewise

    monkeypatch.setattr(LocalExecutor, "_spawn_workers_with_gc_freeze", lambda *_: None)
    executor = WarmLocalExecutor(parallelism=1)
    executor.start()
    worker = multiprocessing.Process(target=time.sleep, args=(60,))
    worker.start()
    executor.workers = {worker.pid: worker}
    plan, publish = make_workload("plan", 2), make_workload("publish", 5)
    executor.queued_tasks = {plan.key: plan}
    executor.heartbeat()
    assert executor.running == {plan.key}

    worker.kill()
    worker.join()
    executor.queued_tasks = {publish.key: publish}
    executor.heartbeat()
    executor.heartbeat()

    assert executor.running == {publish.key}


def test_schemas_of_messages_are_made_once_before_the_workers_start() -> None:
    from airflow.sdk.execution_time import comms, task_runner  # noqa: PLC0415 - see above
    from pydantic import TypeAdapter  # noqa: PLC0415 - likewise

    from frazil_airflow.executor import prepare  # noqa: PLC0415 - likewise

    prepare()

    first, second = (comms.CommsDecoder(socket=None) for _ in range(2))
    assert first.body_decoder is second.body_decoder
    assert isinstance(first.body_decoder, TypeAdapter)
    assert task_runner.TypeAdapter is comms.TypeAdapter


def test_that_a_task_has_started_is_its_first_heartbeat() -> None:
    from airflow.sdk.execution_time.supervisor import (  # noqa: PLC0415 - see above
        ActivitySubprocess,
    )

    from frazil_airflow.executor import prepare  # noqa: PLC0415 - likewise

    beats: list[object] = []
    answer = SimpleNamespace(should_retry=False, start_date=None)
    api = SimpleNamespace(start=lambda *_: answer, heartbeat=lambda *_, **__: beats.append(1))
    process = SimpleNamespace(
        id="1",
        pid=1,
        client=SimpleNamespace(task_instances=api),
        send_msg=lambda *_, **__: None,
        _process=SimpleNamespace(pid=1),
        _terminal_state=None,
        _last_heartbeat_attempt=0.0,
    )
    message = {"dag_rel_path": "a.py", "bundle_info": None, "sentry_integration": ""}
    prepare()

    start, beat = (
        getattr(ActivitySubprocess, n) for n in ("_on_child_started", "_send_heartbeat_if_needed")
    )
    start(process, ti=SimpleNamespace(id="1"), **message)
    beat(process)
    at_once = len(beats)
    process._last_heartbeat_attempt -= 60  # noqa: SLF001 - a minute later
    beat(process)

    assert (at_once, len(beats)) == (0, 1)
