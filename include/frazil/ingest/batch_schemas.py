"""The registered schemas of one batch: chosen before Spark starts, completed by what it met."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from frazil.errors import SchemaMisfitError, StageStaleError
from frazil.iceberg.commit_retry import retry_commit
from frazil.ingest.messages import BatchPlan, StageResult
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, walk_ancestors
from frazil.schemas.evolution import store_pending_schemas
from frazil.schemas.payloads import (
    Payload,
    add_schemas,
    derive_payload_columns,
    find_latest_schema,
    list_payloads,
    select_schemas,
)
from frazil.schemas.wire_format import KeyDecode, Part, WireFormat
from frazil.streams.schema_changes import compare_columns, follow_columns
from frazil.workspace import Workspace

BatchSchemas = dict[Part, WireFormat]


def find_latest_schema_ids(work: Workspace) -> dict[Part, int]:
    """Find the newest schema of each part that is decoded by it, for the plan to name.

    A schema that `work` already has its columns from is not looked up again.

    Raises:
        RegistryUnavailableError, UnknownSubjectError: nothing was planned.
    """
    return {
        payload.part: work.latest_schemas.get(payload.part)
        or find_latest_schema(work.registry(payload.options.registry), payload).id
        for payload in list_payloads(work.stream)
        if not payload.has_schema_id
    }


def read_known_schema_ids(history: History, stream: str) -> tuple[int, ...]:
    """Read the schemas that the stream's last batch met, as its snapshot says."""
    return next(_iterate_ids(history, stream, beyond_metadata=False), ())


def read_seen_schema_ids(history: History, stream: str) -> tuple[int, ...]:
    """Read every schema that a stream's batches met, for what reads their records again."""
    met = _iterate_ids(history, stream, beyond_metadata=True)
    return tuple(sorted({schema_id for ids in met for schema_id in ids}))


def _iterate_ids(
    history: History, stream: str, *, beyond_metadata: bool
) -> Iterator[tuple[int, ...]]:
    """Iterate over what a stream's batches met, the newest first."""
    for entry in walk_ancestors(history, beyond_metadata=beyond_metadata):
        if entry.summary.get(keys.STREAM) == stream and keys.SCHEMA_IDS in entry.summary:
            yield tuple(json.loads(entry.summary[keys.SCHEMA_IDS]))


def select_batch_schemas(
    work: Workspace, plan: BatchPlan, remembered: Sequence[int] = ()
) -> BatchSchemas:
    """Choose the schemas that the batch will probably meet.

    Raises:
        RegistryUnavailableError, UnknownSchemaIdError, SchemaMisfitError: nothing was staged.
    """
    return {
        payload.part: select_schemas(
            work.registry(payload.options.registry),
            payload,
            plan.latest_schemas.get(payload.part),
            remembered,
        )
        for payload in list_payloads(work.stream, plan.put_aside)
    }


def select_letter_schemas(work: Workspace, plan: BatchPlan, met_ids: Sequence[int]) -> BatchSchemas:
    """Choose the schemas of dead letters; what is still unknown, or fits no column, stays refused.

    Raises:
        RegistryUnavailableError, UnknownSchemaIdError, SchemaMisfitError: nothing was staged.
    """
    schemas = select_batch_schemas(work, plan, met_ids)
    for payload in list_payloads(work.stream):
        wire = schemas[payload.part]
        absent = sorted({*met_ids} - {schema.schema_id for schema in wire.schemas})
        if payload.part == "value" and wire.is_framed and absent:
            registry = work.registry(payload.options.registry)
            letters = replace(payload, waits=False)
            where = "met by earlier batches of the stream"
            schemas[payload.part] = add_schemas(registry, letters, wire, absent, where)
    return schemas


def add_unknown_schemas(
    work: Workspace, plan: BatchPlan, schemas: BatchSchemas, result: StageResult
) -> BatchSchemas:
    """Look up what the batch met and nobody had chosen.

    Raises:
        UnknownSchemaIdError: the registry does not know it either; the batch waits.
        RegistryUnavailableError, SchemaMisfitError: likewise.
    """
    ranges = ", ".join(
        f"{topic}-{partition} [{start}, {end})"
        for topic, parts in plan.ranges.items()
        for partition, (start, end) in parts.items()
    )
    partition, _, offset = result.unknown_first.partition(":")
    where = f"met in {ranges}, first at partition {partition} offset {offset}"
    completed = dict(schemas)
    for payload in list_payloads(work.stream, plan.put_aside):
        ids = result.unknown_ids.get(payload.part)
        if ids:
            registry = work.registry(payload.options.registry)
            wire = completed[payload.part]
            completed[payload.part] = add_schemas(registry, payload, wire, ids, where)
    return completed


def describe_key(work: Workspace, schemas: BatchSchemas) -> KeyDecode | None:
    """Say how keys become a column; None where the stream file asks for none."""
    key = work.stream.key
    if key.convert is None:
        return None
    ((column, text),) = key.typed_columns.items()
    return KeyDecode(convert=key.convert, column=column, type=text, wire=schemas.get("key"))


def require_reviewed_schemas(work: Workspace, plan: BatchPlan, met: Iterable[int]) -> None:
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
    declared = work.file_stream
    if declared is None or not declared.value.needs_columns:
        return
    asking = {
        number: asked
        for payload in list_payloads(work.stream, plan.put_aside)
        if payload.part == "value" and payload.has_schema_id
        for number in met
        if (asked := _list_reviewed_ids(work, payload, number))
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


def _list_reviewed_ids(work: Workspace, payload: Payload, number: int) -> str:
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
    asking = replace(work, added_schema_ids=tuple(ids))

    def turn() -> None:
        store_pending_schemas(asking, work.store.load(work.stream.table.name))

    retry_commit(f"noting what schemas of {work.stream.stream} ask for", turn)
