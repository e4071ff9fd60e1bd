"""A question about a schema change is not lost: where no answer was applied it comes again."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import TriggerDagRun

from frazil_airflow.dag_runs import name_next_question

pytestmark = pytest.mark.airflow

Answer = Callable[[dict[str, Any]], str]
TIMEOUT = {"error": "no answer", "error_type": "timeout"}


class Supervisor:
    """Airflow's side of a task, which keeps what it is to trigger."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.told: list[TriggerDagRun] = []

    def send(self, msg: TriggerDagRun) -> None:
        self.told.append(msg)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor


@pytest.fixture
def answer(
    write_stream: Callable[..., Path],
    parse: Callable[[], DagBag],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Answer:
    """Answer the question of a stream without a table; return how the task fails."""
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}"
    connection = {"conn_type": "iceberg", "extra": {"type": "sql", "uri": uri}}
    connection["extra"] |= {"warehouse": warehouse}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    write_stream("orders")
    task = cast("HITLOperator", parse().dags["review_schema"].get_task("decide"))

    def execute(event: dict[str, Any]) -> str:
        run = SimpleNamespace(triggering_user_name=None)
        given = {"params": {"stream": "orders"}, "run_id": "orders__r1", "dag_run": run}
        with pytest.raises(AirflowFailException) as caught:
            task.execute_complete(cast("Context", given), event, review="r1")
        return str(caught.value)

    return execute


def accept(reason: str) -> dict[str, Any]:
    """Return the event by which Airflow reports the answer."""
    user = {"id": "1", "name": "joe"}
    given = {"responded_by_user": user, "responded_at": datetime(2026, 1, 31, tzinfo=UTC)}
    form = {"params_input": {"reason": reason}, "timedout": False}
    return {"chosen_options": ["Accept"], **form, **given}


@pytest.mark.parametrize("reason", ["", "   ", "\n"])
def test_a_blank_reason_is_none(answer: Answer, supervisor: Supervisor, reason: str) -> None:
    assert "no table shop.orders" in answer(accept(reason))  # the reason is no longer the problem
    assert len(supervisor.told) == 1


def test_a_reason_that_cannot_be_written_is_asked_for_again(
    answer: Answer, supervisor: Supervisor
) -> None:
    assert "not UTF-8" in answer(accept("St\ud800"))

    (told,) = supervisor.told
    assert (told.dag_id, told.run_id) == ("review_schema", "orders__r1__again")
    assert told.conf == {"stream": "orders", "review": "r1"}


def test_a_question_without_an_answer_in_time_is_asked_again(
    answer: Answer, supervisor: Supervisor
) -> None:
    assert "no answer within 30 days" in answer(TIMEOUT)
    assert [told.run_id for told in supervisor.told] == ["orders__r1__again"]


def test_each_question_has_a_run_of_its_own_and_its_id_does_not_grow() -> None:
    names = ["orders__r1"]
    for _ in range(3):
        names.append(name_next_question(names[-1]))

    assert names[1:] == [f"orders__r1__again{number}" for number in ("", "2", "3")]
    assert name_next_question("orders__r1__again__again") == "orders__r1__again__again2"
