"""The approval of a second person, requested only if a plan needs it."""

from typing import Any, TypedDict

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context, XComArg
from airflow.sdk.exceptions import AirflowFailException

from frazil.recovery.messages import RecoveryPlan


class ApproveLargeRecovery(ApprovalOperator):
    """Wait under *Required Actions* if the plan needs an approval; otherwise succeed at once."""

    template_fields = (*ApprovalOperator.template_fields, "planned")

    def __init__(self, *, planned: XComArg | str, **settings: Any) -> None:  # noqa: ANN401 - Airflow's
        """Store the plan, the result of the task before."""
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


class Approval(TypedDict):
    """The result of the approval task, if an approval was requested and given."""

    responded_by_user: dict[str, str] | None


def require_approval(plan: RecoveryPlan, answer: Approval | None, triggered_by: str | None) -> None:
    """Check that a second person approved, also if the approval task was marked as success.

    Raises:
        AirflowFailException: the approval is missing, or is by the user who triggered the run.
    """
    if not plan.needs_approval:
        return
    person = (answer["responded_by_user"] if answer else None) or {}
    answered = {*person.values()} - {""}
    if answered and triggered_by and triggered_by not in answered:
        return
    approved = f"approved by {', '.join(sorted(answered))}" if answered else "not approved"
    raise AirflowFailException(
        f"stream {plan.stream}: this rollback needs the approval of a second person. It was "
        f"triggered by {triggered_by or 'an unknown user'} and {approved}; nothing was written.\n"
        "Next: trigger it again with the same form, and let another user approve it under "
        "Required Actions"
    )
