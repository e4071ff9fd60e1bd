"""A rollback waits for a second person only where it takes much."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import UUID

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetHITLDetailResponse

from frazil.recovery.messages import RecoverRequest, RecoveryPlan
from frazil.recovery.rollback import choose_approval_rows
from frazil_airflow.approval import Approval, ApproveLargeRecovery, require_approval

pytestmark = pytest.mark.airflow


def plan_of(**facts: object) -> RecoveryPlan:
    """Plan to go back to snapshot 1; a hundred rows may go without a word."""
    request = RecoverRequest(stream="orders", to_snapshot=1)
    plain = {"target_id": 1, "rows_going": 100, "text": "main goes back", "head": 2, **facts}
    limit = {"request": request, "approval_rows": 100}
    given = {"stream": "orders", "table": "shop.orders", **limit, **plain}
    return RecoveryPlan.model_validate(given)


@pytest.mark.parametrize(
    ("plan", "is_asked"),
    [
        (plan_of(), False),
        (plan_of(rows_going=101), True),
        (plan_of(rows_going=None), True),
        (plan_of(foreign_snapshots=1), True),
        (plan_of(lost={"orders": {"orders": {0: (1, 2)}}}), True),
        (plan_of(target_id=None, rows_going=None), False),
        (plan_of(target_id=None, request=RecoverRequest(stream="orders", answer="skip")), True),
    ],
    ids=[
        "as many rows as may go",
        "one row more",
        "nobody knows how many rows",
        "changes by others that nothing brings back",
        "records that Kafka no longer holds",
        "an answer to a halt",
        "an answer that leaves records out",
    ],
)
def test_a_second_person_is_asked(plan: RecoveryPlan, is_asked: bool) -> None:  # noqa: FBT001
    assert plan.needs_approval is is_asked


def test_a_small_rollback_goes_on_without_a_question() -> None:
    with DAG("d", start_date=datetime(2026, 1, 31), schedule=None):  # noqa: DTZ001
        task = ApproveLargeRecovery(task_id="approve", planned=plan_of().encode())

    assert task.execute(Context()) is None


@pytest.mark.parametrize(
    ("asked", "limit"), [(None, 30), (1_000_000, 30), (2, 2)], ids=["as it is", "laxer", "stricter"]
)
def test_who_asks_may_be_stricter_than_the_site_and_never_laxer(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, limit: int
) -> None:
    monkeypatch.setenv("FRAZIL_APPROVAL_ROWS", "30")

    assert choose_approval_rows(RecoverRequest(stream="orders", approval_rows=asked)) == limit


BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
ASKED: Approval = {"task_instance": str(UUID(int=1))}


class Supervisor:
    """Airflow's side of a task, which knows the response of one task instance."""

    def __init__(self, *names: str, choice: str = "Approve", minutes: int = 5) -> None:
        """Store the response."""
        self.response = SimpleNamespace(
            response_received=True,
            responded_by_user=SimpleNamespace(id=names[0], name=names[-1]) if names else None,
            responded_at=BEGAN + timedelta(minutes=minutes),
            chosen_options=[choice],
        )

    def send(self, msg: GetHITLDetailResponse) -> SimpleNamespace:
        if msg.ti_id != UUID(int=1):
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR))
        return self.response


@pytest.mark.parametrize(
    ("airflow", "answer", "asked_by", "words"),
    [
        (Supervisor("jane"), ASKED, "jane", "triggered by jane and approved by jane"),
        (Supervisor("7", "jane"), ASKED, "jane", "approved by 7, jane"),
        (Supervisor("joe"), None, "jane", "not approved"),
        (Supervisor(), ASKED, "jane", "approved by an unknown user"),
        (Supervisor("joe"), ASKED, None, "an unknown user and approved by joe"),
        (Supervisor("joe", choice="Reject"), ASKED, "jane", "rejected by joe"),
        (Supervisor("joe", minutes=-5), ASKED, "jane", "joe before the run began"),
        (Supervisor("joe"), {"task_instance": str(UUID(int=2))}, "jane", "not approved"),
        (Supervisor("joe"), {"responded_by_user": {"id": "joe"}}, "jane", "not approved"),
    ],
    ids=[
        "one person",
        "one name",
        "marked as success",
        "no user",
        "triggered by no user",
        "a rejection",
        "the answer to another run",
        "a task instance without a question",
        "an XCom with a name in it",
    ],
)
def test_only_a_second_person_s_answer_lets_a_big_rollback_go_on(
    monkeypatch: pytest.MonkeyPatch,
    airflow: Supervisor,
    answer: Approval | None,
    asked_by: str | None,
    words: str,
) -> None:
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow, raising=False)

    with pytest.raises(AirflowFailException, match=words):
        require_approval(plan_of(rows_going=101), answer, asked_by, BEGAN)

    assert require_approval(plan_of(rows_going=100), answer, asked_by, BEGAN) == ""
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor("joe"), raising=False)
    assert require_approval(plan_of(rows_going=101), ASKED, "jane", BEGAN) == "joe"


def test_a_question_without_an_answer_in_time_is_no_rejection_and_is_not_asked_again() -> None:
    with DAG("d", start_date=datetime(2026, 1, 31), schedule=None):  # noqa: DTZ001
        task = ApproveLargeRecovery(task_id="approve", planned=plan_of().encode())

    with pytest.raises(AirflowFailException, match="Not approved and not rejected"):
        task.execute_complete(Context(), {"error": "late", "error_type": "timeout"})
