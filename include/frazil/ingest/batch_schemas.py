"""The registered schemas of a batch: selected before Spark starts, completed by its first read."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pyiceberg.table import Table

from frazil.errors import SchemaMisfitError, StageStaleError
from frazil.iceberg.commit_retry import retry_commit
from frazil.iceberg.manifests import find_lowest
from frazil.iceberg.table_schema import build_partition_spec, build_table_schema
from frazil.iceberg.table_view import TableView
from frazil.ingest.messages import BatchPlan, RowLimits, StageResult
from frazil.ledger import keys
from frazil.ledger.offsets import describe_ranges
from frazil.ledger.recovery_point import History, walk_ancestors
from frazil.schemas.evolution import store_pending_schemas
from frazil.schemas.inferred_columns import list_key_fields
from frazil.schemas.payloads import (
    Payload,
    add_schemas,
    find_latest_schema,
    list_payloads,
    list_required_changes,
    select_schemas,
)
from frazil.schemas.wire_format import KeyDecode, Part, WireFormat
from frazil.streams.partitioning import parse_partition_field
from frazil.workspace import Workspace

BatchSchemas = dict[Part, WireFormat]


def find_latest_schema_ids(work: Workspace) -> dict[Part, int]:
    """Return the newest schema id of each part whose payloads carry none, for the plan.

    Schemas that `work` already took its columns from are not fetched again.

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
    """Read the schema ids of the stream's last batch from its snapshot."""
    return next(_iterate_ids(history, stream, beyond_metadata=False), ())


def read_seen_schema_ids(history: History, stream: str) -> tuple[int, ...]:
    """Read the schema ids of all batches of a stream, to read their records again."""
    batches = _iterate_ids(history, stream, beyond_metadata=True)
    return tuple(sorted({schema_id for ids in batches for schema_id in ids}))


def _iterate_ids(
    history: History, stream: str, *, beyond_metadata: bool
) -> Iterator[tuple[int, ...]]:
    """Iterate over the schema ids of a stream's batches, the newest first."""
    for entry in walk_ancestors(history, beyond_metadata=beyond_metadata):
        if entry.summary.get(keys.STREAM) == stream and keys.SCHEMA_IDS in entry.summary:
            yield tuple(json.loads(entry.summary[keys.SCHEMA_IDS]))


def select_batch_schemas(
    work: Workspace, plan: BatchPlan, remembered: Sequence[int] = ()
) -> BatchSchemas:
    """Choose the schemas that records of the batch probably have.

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
        for payload in list_batch_payloads(work, plan)
    }


def list_batch_payloads(work: Workspace, plan: BatchPlan) -> tuple[Payload, ...]:
    """List the parts of a batch that registered schemas decode."""
    declared = work.file_stream
    follows = declared is not None and declared.value.needs_columns
    return tuple(
        replace(payload, follows_schemas=follows and payload.part == "value")
        for payload in list_payloads(work.stream, plan.quarantined_columns)
    )


def select_dead_letter_schemas(
    work: Workspace, plan: BatchPlan, seen_ids: Sequence[int]
) -> BatchSchemas:
    """Choose the schemas of dead letters; records of unknown or unusable schemas stay dead letters.

    Raises:
        RegistryUnavailableError, UnknownSchemaIdError, SchemaMisfitError: nothing was staged.
    """
    schemas = select_batch_schemas(work, plan, seen_ids)
    for payload in list_batch_payloads(work, plan):
        wire = schemas[payload.part]
        absent = sorted({*seen_ids} - {schema.schema_id for schema in wire.schemas})
        if payload.part == "value" and wire.has_schema_id and absent:
            registry = work.registry(payload.options.registry)
            lenient = replace(payload, stops_batch=False, quarantined_columns=())
            where = "found in earlier batches of the stream"
            schemas[payload.part] = add_schemas(registry, lenient, wire, absent, where)
    return schemas


def add_unknown_schemas(
    work: Workspace, plan: BatchPlan, schemas: BatchSchemas, result: StageResult
) -> BatchSchemas:
    """Add the schemas whose ids the first read found and that were not selected.

    Raises:
        UnknownSchemaIdError: the registry does not have one; the batch waits.
        RegistryUnavailableError, SchemaMisfitError: the batch waits.
    """
    ranges = describe_ranges(plan.offset_ranges)
    where = f"found in {ranges}, first at {result.unknown_first}"
    completed = dict(schemas)
    for payload in list_batch_payloads(work, plan):
        ids = result.unknown_ids.get(payload.part)
        if ids:
            registry = work.registry(payload.options.registry)
            wire = completed[payload.part]
            completed[payload.part] = add_schemas(registry, payload, wire, ids, where)
    return completed


def describe_key(work: Workspace, schemas: BatchSchemas) -> KeyDecode | None:
    """Describe how keys are read; None if the stream has no key column and no change events."""
    key, wire, fields = work.stream.key, schemas.get("key"), list_key_fields(work)
    if key.convert is None:
        convert = work.stream.value.convert
        return KeyDecode(convert=convert, wire=wire, fields=fields) if wire or fields else None
    return KeyDecode(
        convert=key.convert,
        columns=tuple(key.typed_columns),
        is_flat=bool(key.columns),
        wire=wire,
        operation=work.stream.table.operation_field,
        fields=fields,
    )


def describe_limits(work: Workspace, table: Table) -> RowLimits:
    """Describe what the rows of a stream need, given its operations and its tables' partitions.

    A state table is loaded only where the stream has numbers that it could truncate; before it
    exists, the file decides.
    """
    layout, columns = work.stream.table.state, work.stream.parsed_columns
    lowest = find_lowest(table.spec(), table.schema())
    types = str(work.stream.typed_columns)
    if layout is not None and any(word in types for word in ("decimal", "int", "long")):
        state = work.store.find(layout.name)
        if state is None:
            schema = build_table_schema(columns)
            fields = tuple(parse_partition_field(text, columns) for text in layout.partition_by)
            lowest |= find_lowest(build_partition_spec(schema, fields), schema)
        else:
            lowest |= find_lowest(state.spec(), state.schema())
    names = {column.name for column in columns}
    known = {path: value for path, value in lowest.items() if path.partition(".")[0] in names}
    return RowLimits(operation=work.stream.table.cdc_field, lowest=known)


def require_reviewed_schemas(work: Workspace, plan: BatchPlan, used_ids: Iterable[int]) -> None:
    """Refuse a batch with a schema whose change was not reviewed: its new fields would be lost.

    The schemas are stored as pending, so that the next plan applies the policy to them.

    Args:
        work: the stream with its table's columns; if its file lists columns, every schema passes.
        plan: the batch; columns that it quarantines were reviewed.
        used_ids: ids of the schemas with which values of the batch were decoded.

    Raises:
        StageStaleError: a schema requires a change; nothing of the batch is visible.
        RegistryUnavailableError: a schema cannot be read.
    """
    declared = work.file_stream
    if declared is None or not declared.value.needs_columns:
        return
    unreviewed = {
        number: changes
        for payload in list_batch_payloads(work, plan)
        if payload.part == "value" and payload.has_schema_id
        for number in used_ids
        if (changes := _describe_unreviewed(work, payload, number))
    }
    if not unreviewed:
        return
    pending = replace(work, added_schema_ids=tuple(unreviewed))
    retry_commit(
        f"storing pending schemas of {work.stream.stream}",
        lambda: store_pending_schemas(pending, TableView(work.store, plan.table).table),
    )
    required = "; ".join(f"schema {number} requires {text}" for number, text in unreviewed.items())
    raise StageStaleError(
        f"batch {plan.batch_id}: {required}, which {plan.table} does not have and the plan did not "
        "review; nothing of the batch is visible, the change is now pending",
        f"`frazil run {plan.stream}` applies the schema policy to it",
    )


def _describe_unreviewed(work: Workspace, payload: Payload, number: int) -> str:
    """Describe the changes that a schema requires; empty if there are none or quarantined ones."""
    schema = work.registry(payload.options.registry).find_schema(number, payload.subject)
    if schema is None:
        return ""
    try:
        changes = list_required_changes(payload, schema)
    except SchemaMisfitError:
        return ""  # its records were refused
    if any(change.path in payload.quarantined_columns for change in changes):
        return ""
    return ", ".join(change.text for change in changes)
