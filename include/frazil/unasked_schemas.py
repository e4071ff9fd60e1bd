"""Schemas that a batch met and nobody was asked about: older or other ones than the newest."""

from collections.abc import Iterable
from dataclasses import replace

from frazil.contracts import BatchPlan
from frazil.errors import SchemaMisfitError, StageStaleError
from frazil.evolution import keep_question
from frazil.schema_policy import compare_columns, follow_columns
from frazil.turns import take_turns
from frazil.wire_schemas import Payload, derive_payload_columns, list_payloads
from frazil.workspace import Workspace


def refuse_unasked(work: Workspace, plan: BatchPlan, met: Iterable[int]) -> None:
    """Refuse a batch of which a schema asks for more than the table has.

    Its fields would be left out without a word. Who asks is noted in the table, so that the next
    plan follows by policy, or asks a person.

    Args:
        work: the stream with its table's columns; one whose file lists them asks for nothing.
        plan: the batch; what it puts aside is in question already.
        met: ids of the schemas by which values of the batch were decoded.

    Raises:
        StageStaleError: a schema asks; nothing of the batch is visible.
        RegistryUnavailableError: nobody knows what a schema asks for.
    """
    written = work.written
    if written is None or not written.value.needs_columns:
        return
    asking = {
        number: asked
        for payload in list_payloads(work.stream, plan.put_aside)
        if payload.part == "value" and payload.is_framed
        for number in met
        if (asked := _list_asked(work, payload, number))
    }
    if not asking:
        return
    _note(work, asking)
    told = "; ".join(f"schema {number} asks for {asked}" for number, asked in asking.items())
    raise StageStaleError(
        f"batch {plan.batch_id}: {told}, which {plan.table} has not, and it is not the newest "
        "schema, which the plan looked at; nothing of the batch is visible, the schema is noted",
        f"`frazil run {plan.stream}`: it follows by policy, or asks a person first",
    )


def _list_asked(work: Workspace, payload: Payload, number: int) -> str:
    """Say what a schema asks for beyond the columns; empty if nothing, or if it is put aside."""
    schema = work.registry(payload.options.registry).find_schema(number)
    if schema is None:
        return ""
    try:
        wanted = derive_payload_columns(payload, schema)
    except SchemaMisfitError:
        return ""  # where it matters its records were refused
    changes = compare_columns(payload.columns, follow_columns(payload.columns, wanted), frozenset())
    if any(change.path in payload.put_aside for change in changes):
        return ""
    return ", ".join(change.text for change in changes)


def _note(work: Workspace, ids: Iterable[int]) -> None:
    """Put the schemas into question, after those that are."""
    asking = replace(work, asked_by=tuple(ids))

    def turn() -> None:
        keep_question(asking, work.store.load(work.stream.table.name))

    take_turns(f"noting what schemas of {work.stream.stream} ask for", turn)
