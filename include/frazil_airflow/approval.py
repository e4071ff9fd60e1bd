"""The approval of a second person, requested only if a plan needs it."""

from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context, XComArg
from airflow.sdk.exceptions import AirflowFailException

from frazil.recovery.messages import RecoveryPlan
from frazil_airflow.dag_runs import HumanResponse, read_response

ANSWER_WITHIN = timedelta(hours=47)
"""Shorter than the time limit of the DAG's runs, so that the task can tell what happened."""


class ApproveLargeRecovery(ApprovalOperator):
    """Wait under *Required Actions* if the plan needs an approval; otherwise succeed at once."""

    template_fields = (*ApprovalOperator.template_fields, "planned")

    def __init__(self, *, planned: XComArg | str, **settings: Any) -> None:  # noqa: ANN401 - Airflow's
        """Store the plan, the result of the task before."""
        settings = {"response_timeout": ANSWER_WITHIN, **settings}
        super().__init__(subject="Apply this rollback?", **settings)
        self.planned: object = planned

    def execute(self, context: Context) -> object:
        """Request an approval if the plan needs one."""
        plan = RecoveryPlan.parse(str(self.planned))
        if not plan.needs_approval:
            self.log.info("no approval needed: %s rows would be removed", plan.rows_going)
            return None
        author = f"{plan.request.by}: {plan.request.reason}"
        rows = "1 row" if plan.rows_going == 1 else f"{plan.rows_going} rows"
        self.subject = f"Roll back {plan.table} and remove {rows}? ({author})"
        self.body = f"```\n{plan.text}\n```"
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> object:
        """Return the task instance that was answered; a rejection skips the rollback.

        Raises:
            AirflowFailException: no user answered in time.
        """
        nothing = "Nothing was written. Next: trigger the DAG again with the same form"
        if event.get("error_type") == "timeout":
            limit = self.response_timeout
            message = f"Not approved and not rejected: no answer within {limit}. {nothing}"
            raise AirflowFailException(message)
        answer = super().execute_complete(context, event)
        if answer["chosen_options"] != [self.APPROVE]:
            user = answer["responded_by_user"] or {}
            self.log.warning("Rejected by %s. %s", user.get("name") or user.get("id"), nothing)
        return {**answer, "task_instance": str(context["ti"].id)}


class Approval(TypedDict):
    """The result of the approval task; it only names the task instance whose answer counts."""

    task_instance: str


def require_approval(
    plan: RecoveryPlan, answer: Approval | None, triggered_by: str | None, began_at: datetime | None
) -> str:
    """Return who approved the plan, by Airflow's record of the answer; "" if none is needed.

    Users who may write XComs can change `answer`. So it only says where to look: the response is
    read from Airflow, must be *Approve*, and must have been given after this run began. As runs of
    `recover` do not overlap, it cannot be the answer to another rollback.

    Raises:
        AirflowFailException: the approval is missing, a rejection, or by the user who triggered.
    """
    if not plan.needs_approval:
        return ""
    response = _read_response(answer)
    names = response.names if response else frozenset()
    who = ", ".join(sorted(names)) or "an unknown user"
    if response is None:
        found = "not approved"
    elif response.chosen != (ApprovalOperator.APPROVE,):
        found = f"rejected by {who}"
    elif not response.at or not began_at or response.at < began_at:
        found = f"approved by {who} before the run began, which is the answer to another run"
    elif names and triggered_by and triggered_by not in names:
        return who
    else:
        found = f"approved by {who}"
    raise AirflowFailException(
        f"stream {plan.stream}: this rollback needs the approval of a second person. It was "
        f"triggered by {triggered_by or 'an unknown user'} and {found}; nothing was written.\n"
        "Next: trigger it again with the same form, and let another user approve it under "
        "Required Actions"
    )


def _read_response(answer: Approval | None) -> HumanResponse | None:
    """Read the response of the task instance that the answer names; None if there is none."""
    try:
        return read_response(UUID(str(answer["task_instance"]))) if answer else None
    except (KeyError, TypeError, ValueError):
        return None
