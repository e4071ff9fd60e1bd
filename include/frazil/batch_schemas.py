"""The registered schemas of one batch: chosen before Spark starts, completed by what it met."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from frazil import keys
from frazil.contracts import BatchPlan, KeyDecode, Part, StageResult, WireFormat
from frazil.ledger import History, walk_ancestors
from frazil.wire_schemas import (
    add_schemas,
    find_latest_schema,
    list_payloads,
    select_schemas,
)
from frazil.workspace import Workspace

BatchSchemas = dict[Part, WireFormat]


def find_latest_ids(work: Workspace) -> dict[Part, int]:
    """Find the newest schema of each part that is decoded by it, for the plan to name.

    Raises:
        RegistryUnavailableError, UnknownSubjectError: nothing was planned.
    """
    return {
        payload.part: find_latest_schema(work.registry(payload.options.registry), payload).id
        for payload in list_payloads(work.stream)
        if not payload.is_framed
    }


def read_remembered_ids(history: History, stream: str) -> tuple[int, ...]:
    """Read the schemas that the stream's last batch met, as its snapshot says."""
    return next(_iterate_ids(history, stream, beyond_metadata=False), ())


def read_met_ids(history: History, stream: str) -> tuple[int, ...]:
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
