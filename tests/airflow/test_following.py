"""What a task asks of Airflow, where Airflow may not answer."""

import pytest
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagResult, ErrorResponse, GetDag

from frazil_airflow.following import is_paused

pytestmark = pytest.mark.airflow


class Supervisor:
    """Airflow's side of a task, which knows two DAGs and is gone for a third."""

    def send(self, msg: GetDag) -> DagResult | ErrorResponse:
        if msg.dag_id == "gone":
            raise ConnectionError
        if msg.dag_id == "unknown":
            return ErrorResponse(error=ErrorType.GENERIC_ERROR)
        nothing = dict.fromkeys(
            ("bundle_name", "bundle_version", "relative_fileloc", "owners", "next_dagrun")
        )
        paused = msg.dag_id == "paused"
        return DagResult(dag_id=msg.dag_id, is_paused=paused, tags=[], **nothing)


@pytest.mark.parametrize("dag_id", ["paused", "running", "unknown", "gone"])
def test_only_a_dag_that_airflow_calls_paused_is_paused(
    monkeypatch: pytest.MonkeyPatch, dag_id: str
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)

    assert is_paused(dag_id) == (dag_id == "paused")
