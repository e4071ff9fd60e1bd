"""A rollback in Airflow, with the approval of a second person if its plan needs one.

The task that requests the approval also rolls back: Airflow passes it the user who answered. It
reads no result (XCom) of another task, because users may write those.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    TaskAwaitingInput,
)

from frazil.ledger.authors import require_not_dry_run
from frazil.messages import count_noun
from frazil.recovery.messages import RecoveryPlan
from frazil_airflow.tasks import log_result, run_as_task

ANSWER_WITHIN = timedelta(hours=47)
"""Shorter than the time limit of the DAG's runs, so that the task can report the outcome."""


class RollBack(ApprovalOperator):
    """Roll back; if the plan needs an approval, first wait under *Required Actions*."""

    def __init__(self, *, plan: Callable[[Context], RecoveryPlan | None], **settings: Any) -> None:  # noqa: ANN401 - Airflow's
        """Store a function that plans from the run's form; it returns None without a rollback."""
        settings = {"response_timeout": ANSWER_WITHIN, **settings}
        super().__init__(subject="Apply this rollback?", **settings)
        self.plan = plan

    def execute(self, context: Context) -> object:
        """Roll back, or request an approval if the plan needs one."""
        with run_as_task(context, {}):
            plan = self.plan(context)
            if plan is None:
                self.log.info("no rollback")
                return None
            require_not_dry_run(plan.stream, dry_run=plan.request.dry_run)
        if not plan.needs_approval:
            self.log.info("no approval needed: %s", _describe_rows(plan))
            return self._roll_back(context, plan)
        author = f"{plan.request.by}: {plan.request.reason}"
        self.subject = f"Roll back {plan.table} and {_describe_rows(plan)}? ({author})"
        self.body = f"```\n{plan.text}\n```"
        try:
            return super().execute(context)
        except TaskAwaitingInput as waiting:
            waiting.kwargs = {"asked": plan.model_dump_json()}
            raise

    def execute_complete(self, context: Context, event: dict[str, Any], asked: str = "") -> object:
        """Carry out the plan that a person was asked for; after a rejection skip it.

        Raises:
            AirflowFailException: no user answered in time, or the user who triggered the run did.
        """
        nothing = "Nothing was written. Next: trigger the DAG again with the same form"
        if event.get("error_type") == "timeout":
            hours = self.response_timeout.total_seconds() / 3600 if self.response_timeout else 0
            message = f"Neither approved nor rejected: no answer within {hours:g} hours. {nothing}"
            raise AirflowFailException(message)
        answer = super().execute_complete(context, event)
        user = answer["responded_by_user"]
        if answer["chosen_options"] != [self.APPROVE]:
            who = name_of(user) or "an unknown user"
            raise AirflowSkipException(f"Rejected by {who}. {nothing}")
        require_second_person(user, context["dag_run"].triggering_user_name)
        return self._roll_back(context, RecoveryPlan.parse(asked), name_of(user))

    def _roll_back(self, context: Context, plan: RecoveryPlan, approved_by: str = "") -> object:
        from frazil.recovery.rollback import recover  # noqa: PLC0415 - heavy
        from frazil.workspace import open_workspace  # noqa: PLC0415

        with run_as_task(context, {}):
            work = open_workspace(plan.stream, context["run_id"])
            return log_result(recover(work, plan, approved_by))


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
            f"{name_of(user) or 'an unknown user'}; nothing was written.\nNext: trigger it again "
            "with the same form, and let another user approve it under Required Actions"
        )


def name_of(user: dict[str, str] | None) -> str:
    """Return the name, or else the id, of a user that Airflow names; "" without one."""
    return (user.get("name") or user.get("id") or "") if user else ""


def _describe_rows(plan: RecoveryPlan) -> str:
    """Describe how many rows a rollback removes, and earlier ones removed without an approval."""
    text = f"remove {_count(plan.rows_removed)}"
    if plan.rows_removed_earlier == 0:
        return text
    earlier = _count(plan.rows_removed_earlier)
    return f"{text}, after {earlier} by rollbacks of the last 24 hours without an approval"


def _count(rows: int | None) -> str:
    return "an unknown number of rows" if rows is None else count_noun(rows, "row")
