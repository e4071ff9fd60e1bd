"""The approval of a second person, requested only if a plan needs it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from frazil.messages import count_noun
from frazil.recovery.messages import RecoveryPlan
from frazil_airflow.tasks import run_as_task

ANSWER_WITHIN = timedelta(hours=47)
"""Shorter than the time limit of the DAG's runs, so that the task can tell what happened."""


class Approval(TypedDict):
    """The result of the approval task."""

    responded_by_user: dict[str, str] | None


class ApproveLargeRecovery(ApprovalOperator):
    """Wait under *Required Actions* if the plan needs an approval; otherwise succeed at once.

    It plans for itself and checks here who answered, because users may write the results (XComs) of
    tasks: this task succeeds only if no approval is needed, or a second person gave it.
    """

    def __init__(self, *, plan: Callable[[Context], RecoveryPlan | None], **settings: Any) -> None:  # noqa: ANN401 - Airflow's
        """Store the function that plans by the form of the run; None: it is no rollback."""
        settings = {"response_timeout": ANSWER_WITHIN, **settings}
        super().__init__(subject="Apply this rollback?", **settings)
        self.plan = plan

    def execute(self, context: Context) -> object:
        """Request an approval if the plan needs one."""
        with run_as_task(context, {}):
            plan = self.plan(context)
        if plan is None or not plan.needs_approval:
            self.log.info("no approval needed: %s", _describe_rows(plan) if plan else "no rollback")
            return None
        author = f"{plan.request.by}: {plan.request.reason}"
        self.subject = f"Roll back {plan.table} and {_describe_rows(plan)}? ({author})"
        self.body = f"```\n{plan.text}\n```"
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> object:
        """Return who approved; a rejection skips the rollback.

        Raises:
            AirflowFailException: no user answered in time, or the user who triggered the run did.
        """
        nothing = "Nothing was written. Next: trigger the DAG again with the same form"
        if event.get("error_type") == "timeout":
            limit = self.response_timeout
            message = f"Not approved and not rejected: no answer within {limit}. {nothing}"
            raise AirflowFailException(message)
        answer = super().execute_complete(context, event)
        user = answer["responded_by_user"]
        if answer["chosen_options"] == [self.APPROVE]:
            require_second_person(user, context["dag_run"].triggering_user_name)
        else:
            self.log.warning("Rejected by %s. %s", _name_of(user) or "an unknown user", nothing)
        return answer


def require_second_person(user: dict[str, str] | None, triggered_by: str | None) -> None:
    """Check that two users are known and differ.

    Raises:
        AirflowFailException: they are the same, or one is unknown.
    """
    names = {user.get("id"), user.get("name")} - {None, ""} if user else set()
    if not names or not triggered_by or triggered_by in names:
        raise AirflowFailException(
            "This rollback needs the approval of a second person. It was triggered by "
            f"{triggered_by or 'an unknown user'} and approved by "
            f"{_name_of(user) or 'an unknown user'}; nothing was written.\nNext: trigger it again "
            "with the same form, and let another user approve it under Required Actions"
        )


def require_approval(plan: RecoveryPlan, answer: Approval | None) -> str:
    """Return who approved the plan; "" if it needs no approval.

    Raises:
        AirflowFailException: it needs one and has none: the table has changed since it was
            requested, or the approval task was marked as successful by hand.
    """
    if not plan.needs_approval:
        return ""
    name = _name_of(answer.get("responded_by_user")) if answer else ""
    if not name:
        raise AirflowFailException(
            f"stream {plan.stream}: this rollback now needs the approval of a second person, and "
            "none was given; nothing was written.\nNext: trigger it again with the same form"
        )
    return name


def _name_of(user: dict[str, str] | None) -> str:
    return (user.get("name") or user.get("id") or "") if user else ""


def _describe_rows(plan: RecoveryPlan) -> str:
    if plan.rows_removed is None:
        return "remove an unknown number of rows"
    return f"remove {count_noun(plan.rows_removed, 'row')}"
