"""A second person's word, asked for only where a plan says that it is needed."""

from typing import Any, TypedDict

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context, XComArg
from airflow.sdk.exceptions import AirflowFailException

from frazil.recovery.messages import RecoveryPlan


class ApproveLargeRecovery(ApprovalOperator):
    """Wait under *Required Actions* before a recovery that takes much; let any other pass."""

    template_fields = (*ApprovalOperator.template_fields, "planned")

    def __init__(self, *, planned: XComArg | str, **settings: Any) -> None:  # noqa: ANN401 - Airflow's
        """Take the plan of the task before."""
        super().__init__(subject="May this rollback go on?", **settings)
        self.planned: object = planned

    def execute(self, context: Context) -> object:
        """Ask, or go on without a question."""
        plan = RecoveryPlan.parse(str(self.planned))
        if not plan.needs_approval:
            self.log.info("no second person is needed: %s rows go", plan.rows_going)
            return None
        who = f"{plan.request.by}: {plan.request.reason}"
        self.subject = f"Roll {plan.table} back? {plan.rows_going} rows go ({who})"
        self.body = f"```\n{plan.text}\n```"
        return super().execute(context)


class Approval(TypedDict):
    """What the question's task gives, where it was asked and answered."""

    responded_by_user: dict[str, str] | None


def refuse_unapproved(plan: RecoveryPlan, answer: Approval | None, asked_by: str | None) -> None:
    """See that a plan that needs a second person has one, however its task came to be green.

    Raises:
        AirflowFailException: nobody answered, or who asked did; nothing was written.
    """
    if not plan.needs_approval:
        return
    person = (answer["responded_by_user"] if answer else None) or {}
    answered = {*person.values()} - {""}
    if answered and asked_by and asked_by not in answered:
        return
    who = f"answered by {', '.join(sorted(answered))}" if answered else "answered by nobody"
    raise AirflowFailException(
        f"stream {plan.stream}: this rollback needs a second person; it was triggered by "
        f"{asked_by or 'nobody who is known'} and {who}; nothing was written. Next: let one user "
        "trigger it again with the same words, and another one approve it under Required Actions"
    )
