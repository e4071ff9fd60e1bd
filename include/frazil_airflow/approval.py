"""A second person's word, asked for only where a plan says that it is needed."""

from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context, XComArg
from airflow.sdk.exceptions import AirflowFailException

from frazil.recovery_messages import RecoveryPlan


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

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ANN401 - Airflow's
        """Take the answer, unless who asked gave it.

        Raises:
            AirflowFailException: one person asked and approved; nothing was written.
        """
        asked, answered = context["dag_run"].triggering_user_name, event["responded_by_user"] or {}
        if self.APPROVE in event["chosen_options"] and asked in {*answered.values()} - {None}:
            raise AirflowFailException(
                f"run {context['run_id']} was triggered by {asked}, who approved it too: a second "
                "person is needed; nothing was written. Next: trigger it again with the same "
                "words, and let another person answer under Required Actions"
            )
        return super().execute_complete(context, event)
