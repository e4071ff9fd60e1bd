"""The executor: what is chosen next, when a turn of the scheduler waits, what is prepared once."""

import multiprocessing
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from frazil_airflow.executor import WarmLocalExecutor


NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
NEVER = datetime(2020, 1, 1, tzinfo=UTC)


def make_workload(task: str, weight: int) -> SimpleNamespace:
    from airflow.models.taskinstancekey import TaskInstanceKey  # noqa: PLC0415 - see below

    key = TaskInstanceKey("ingest__orders", task, "run")
    return SimpleNamespace(key=key, ti=SimpleNamespace(priority_weight=weight, key=key))


@pytest.fixture(scope="module", autouse=True)
def database() -> Iterator[None]:
    """Make Airflow's tables for these tests: all others do without."""
    from airflow import settings  # noqa: PLC0415 - after the environment
    from airflow.models import import_all_models  # noqa: PLC0415 - likewise
    from airflow.models.base import Base  # noqa: PLC0415 - likewise

    import_all_models()
    Base.metadata.create_all(settings.engine)
    yield
    Base.metadata.drop_all(settings.engine)


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no turn wait where a test does not look at it."""
    from frazil_airflow import executor  # noqa: PLC0415 - after the environment

    monkeypatch.setattr(executor, "FULL_SECONDS", 0.0)
    monkeypatch.setattr(executor, "GATHER_SECONDS", 0.0)


def add_run(
    dag: str, looked_at: datetime, state: str = "running", ended_at: datetime = NEVER
) -> None:
    """Put a run with one task into Airflow's database; it was looked at, its task has ended."""
    from airflow.models.dag import DagModel  # noqa: PLC0415 - after the environment
    from airflow.models.dagbundle import DagBundleModel  # noqa: PLC0415 - likewise
    from airflow.models.dagrun import DagRun  # noqa: PLC0415 - likewise
    from airflow.models.taskinstance import TaskInstance  # noqa: PLC0415 - likewise
    from airflow.utils.session import create_session  # noqa: PLC0415 - likewise
    from airflow.utils.state import DagRunState  # noqa: PLC0415 - likewise
    from sqlalchemy import insert  # noqa: PLC0415 - likewise

    has_ended = ended_at != NEVER
    task = {"id": uuid.uuid4(), "dag_id": dag, "run_id": "run", "task_id": "plan", "pool": "any"}
    task |= {"state": "success" if has_ended else "scheduled", "updated_at": ended_at}
    with create_session() as session:
        if session.get(DagBundleModel, "bundle") is None:
            session.add(DagBundleModel(name="bundle"))
            session.flush()
        session.add(DagModel(dag_id=dag, bundle_name="bundle", is_paused=False, is_stale=False))
        session.flush()
        run = DagRun(dag_id=dag, run_id="run", run_type="manual", run_after=NEVER)
        run.state, run.last_scheduling_decision = DagRunState(state), looked_at
        session.add(run)
        session.flush()
        session.execute(insert(TaskInstance).values(pool_slots=1, **task))


def read_looks(dag: str) -> datetime | None:
    """Read when a run was looked at."""
    from airflow.models.dagrun import DagRun  # noqa: PLC0415 - after the environment
    from airflow.utils.session import create_session  # noqa: PLC0415 - likewise
    from sqlalchemy import select  # noqa: PLC0415 - likewise

    with create_session() as session:
        found: datetime | None = session.scalar(
            select(DagRun.last_scheduling_decision).where(DagRun.dag_id == dag)
        )
        return found


def list_next_runs() -> list[str]:
    """Ask Airflow which runs its scheduler looks at next."""
    from airflow.models.dagrun import DagRun  # noqa: PLC0415 - after the environment
    from airflow.utils.session import create_session  # noqa: PLC0415 - likewise

    with create_session() as session:
        return [run.dag_id for run in DagRun.get_running_dag_runs_to_examine(session)]


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
    from airflow.sdk.execution_time import comms, supervisor, task_runner  # noqa: PLC0415 - see below
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


def test_with_a_free_slot_no_turn_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from frazil_airflow import executor as module  # noqa: PLC0415 - after the environment

    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=time.monotonic)
    monkeypatch.setattr(module, "time", clock)  # the module's alone: other threads sleep too
    monkeypatch.setattr(module, "FULL_SECONDS", 0.05)
    executor = start_without_workers(monkeypatch, slots=2)
    plan = make_workload("plan", 2)
    executor.queued_tasks = {plan.key: plan}

    executor.heartbeat()
    executor.heartbeat()

    assert executor.running == {plan.key}
    assert not slept


def test_runs_in_which_a_task_has_ended_are_looked_at_before_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for minute, dag in enumerate(("waits", "was_looked_at", "goes_on")):
        at = NOON.replace(minute=minute)
        ended = {"goes_on": at + SECOND, "was_looked_at": at - SECOND}.get(dag, NEVER)
        add_run(dag, at, ended_at=ended)
    add_run("is_over", NOON, state="success", ended_at=NOON + SECOND)
    executor = start_without_workers(monkeypatch, slots=1)

    before = list_next_runs()
    executor.heartbeat()

    assert before == ["waits", "was_looked_at", "goes_on"]
    assert list_next_runs() == ["goes_on", "waits", "was_looked_at"]
    assert read_looks("is_over") == NOON
    assert read_looks("goes_on") is not None


def test_a_database_that_does_not_answer_ends_no_scheduler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow import settings  # noqa: PLC0415 - after the environment
    from airflow.utils.state import TaskInstanceState  # noqa: PLC0415 - likewise
    from sqlalchemy import create_engine  # noqa: PLC0415 - likewise
    from sqlalchemy.orm import scoped_session, sessionmaker  # noqa: PLC0415 - likewise

    executor = start_without_workers(monkeypatch, slots=1)
    plan = make_workload("plan", 2)
    executor.result_queue.put((plan.key, TaskInstanceState.SUCCESS, None))
    nowhere = create_engine(f"sqlite:///{tmp_path}/no/such/folder.db")
    monkeypatch.setattr(settings, "Session", scoped_session(sessionmaker(bind=nowhere)))

    executor.heartbeat()

    assert [*executor.get_event_buffer()] == [plan.key]


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


def make_process(beats: list[object]) -> SimpleNamespace:
    """Make of Airflow's supervisor of a task what it needs to start one and to say so."""
    answer = SimpleNamespace(should_retry=False, start_date=None)
    api = SimpleNamespace(start=lambda *_: answer, heartbeat=lambda *_, **__: beats.append(1))
    return SimpleNamespace(
        id="1",
        pid=1,
        client=SimpleNamespace(task_instances=api),
        send_msg=lambda *_, **__: None,
        _process=SimpleNamespace(pid=1),
        _terminal_state=None,
        _last_heartbeat_attempt=0.0,
    )


def test_that_a_task_has_started_is_its_first_heartbeat() -> None:
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess  # noqa: PLC0415 - see above

    from frazil_airflow.executor import prepare  # noqa: PLC0415 - likewise

    beats: list[object] = []
    process = make_process(beats)
    message = {"dag_rel_path": "a.py", "bundle_info": None, "sentry_integration": ""}
    prepare()

    beat = ActivitySubprocess._send_heartbeat_if_needed  # noqa: SLF001 - as its loop does
    ActivitySubprocess._on_child_started(  # noqa: SLF001 - what a start calls
        process, ti=SimpleNamespace(id="1"), **message
    )
    beat(process)
    at_once = len(beats)
    process._last_heartbeat_attempt -= 60  # noqa: SLF001 - a minute later
    beat(process)

    assert (at_once, len(beats)) == (0, 1)
