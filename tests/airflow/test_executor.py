"""The executor takes no more tasks than it has slots, so that the next one is chosen by weight."""

import multiprocessing
import time
from types import SimpleNamespace

import pytest


def make_workload(task: str, weight: int) -> SimpleNamespace:
    from airflow.models.taskinstancekey import TaskInstanceKey  # noqa: PLC0415 - see below

    key = TaskInstanceKey("ingest__orders", task, "run")
    return SimpleNamespace(key=key, ti=SimpleNamespace(priority_weight=weight, key=key))


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Airflow's modules back what a start puts into them."""
    from airflow.sdk.execution_time import comms, task_runner  # noqa: PLC0415 - see below
    from pydantic import TypeAdapter  # noqa: PLC0415 - likewise

    for module in (comms, task_runner):
        monkeypatch.setattr(module, "TypeAdapter", TypeAdapter)


def test_a_task_waits_outside_until_a_slot_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.executors.local_executor import LocalExecutor  # noqa: PLC0415 - after the
    from airflow.utils.state import TaskInstanceState  # noqa: PLC0415 - environment

    from frazil_airflow.executor import WarmLocalExecutor  # noqa: PLC0415 - likewise

    # No worker takes anything: what the executor has taken stays with it.
    monkeypatch.setattr(LocalExecutor, "_spawn_workers_with_gc_freeze", lambda *_: None)
    monkeypatch.setattr(LocalExecutor, "_check_workers", lambda *_: None)
    executor = WarmLocalExecutor(parallelism=2)
    executor.start()
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
