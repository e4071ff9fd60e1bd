"""Compare a table with its stream file or registered schemas, and decide who must approve.

Reads only; `evolution` commits changes and decisions.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from frazil.errors import SchemaRefusedError, SchemaReviewError
from frazil.iceberg.table_schema import to_columns
from frazil.iceberg.table_view import TableView
from frazil.ledger import keys
from frazil.ledger.offsets import describe_next_offsets, plain_offsets
from frazil.ledger.stored_properties import (
    parse_texts,
    read_property,
    read_schema_changes,
)
from frazil.messages import MessagePart
from frazil.schemas.inferred_columns import with_columns, with_newest_columns
from frazil.schemas.merge import merge_schema
from frazil.schemas.partition_evolution import (
    compare_partitions,
    list_name_clashes,
    list_partitions,
)
from frazil.streams.models import Policy, Stream
from frazil.streams.schema_changes import EFFECTS, SchemaChange, choose_policy, compare_columns
from frazil.workspace import Workspace

_REPLACING = frozenset({"narrow", "change_type", "drop"})
_HARMLESS = frozenset({"add_column", "add_required", "widen", "relax"})


class SchemaDecision(MessagePart):
    """A person's decision against some changes, as a table property stores it.

    `stop`: the stream is stopped. `quarantine`: it continues, and records whose schema requires one
    of the changes become dead letters.
    """

    kind: Literal["stop", "quarantine"]
    changes: tuple[str, ...]
    by: str
    reason: str
    at: str


@dataclass(frozen=True)
class SchemaReview:
    """The changes that a table needs, the policy for them, and a decision against them."""

    stream: str
    table: str
    changes: tuple[SchemaChange, ...]
    policy: Policy
    impossible: tuple[str, ...]
    """The changes that Iceberg cannot make in place."""
    review_id: str
    decision: SchemaDecision | None
    no_quarantine: str
    """Why this stream's records cannot be quarantined; empty if they can."""

    @property
    def quarantined_columns(self) -> tuple[str, ...]:
        """List the columns whose records become dead letters, by a person's decision."""
        is_chosen = self.decision is not None and self.decision.kind == "quarantine"
        if not is_chosen or self.policy != "review" or self.no_quarantine or self.impossible:
            return ()
        return tuple(sorted({change.path for change in self.changes}))

    @property
    def text(self) -> str:
        """Describe the changes on one line."""
        return "; ".join(change.text for change in self.changes)

    @property
    def lines(self) -> list[str]:
        """List the changes, each with its effect on the table."""
        return [f"{change.text} ({EFFECTS[change.kind]})" for change in self.changes]


def has_begun(properties: Mapping[str, str], stream: str) -> bool:
    """Return whether the stream has written to the table; only then is a difference a change."""
    return keys.hint_key(stream) in properties


def file_properties(stream: Stream) -> dict[str, str]:
    """Return the file's columns and partitions as table properties.

    With them a column dropped from the file differs from one that another writer added, and an
    edited `partition_by` from partitions that were changed in the table.
    """
    names = [column.name for column in stream.parsed_columns]
    partitions = [field.text for field in stream.partition_fields]
    return {
        keys.columns_key(stream.stream): json.dumps(names),
        keys.partitions_key(stream.stream): json.dumps(partitions),
    }


def _explain_no_quarantine(stream: Stream, changes: Sequence[SchemaChange]) -> str:
    """Explain why records of a stream, as its file declares it, cannot be quarantined; or "".

    Only the schema id in front of each value identifies the records that require a change.
    """
    convert, tolerance = stream.value.convert, stream.errors.tolerance
    reasons = {
        "a change of partitions comes from the stream file, not from records": any(
            change.kind == "repartition" for change in changes
        ),
        "this stream does not take its schema from a registry": not stream.value.needs_columns,
        f"values have no schema id (value.convert is {convert})": convert != "by_schema_id",
        "the type of its keys comes from a registered schema too": stream.key.needs_type,
        "its topic is shared with other streams by a route": stream.route is not None,
        f"errors.tolerance is {tolerance}, which writes no dead letters": tolerance != "quarantine",
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def review_table(table: Table, work: Workspace) -> SchemaReview | None:
    """Compare the table with the stream's columns and partitions; None if they are the same.

    `work` comes from `with_newest_columns`.
    """
    stream = work.stream
    written = _read_columns(table.properties, keys.columns_key(stream.stream), stream.table.name)
    schema = table.schema()
    have = to_columns(f for f in schema.fields if f.name != keys.KAFKA_COLUMN)
    changes = compare_columns(have, stream.parsed_columns, frozenset(written))
    impossible = _list_impossible(table, changes)
    impossible += _list_shared(table, stream.stream, changes)
    impossible += _list_state_conflicts(work, changes)
    merged = schema
    if changes and not impossible:
        columns = stream.parsed_columns
        merged = merge_schema(schema, table.metadata.last_column_id, columns, changes)
    if not impossible and _has_edited_partitions(table.properties, stream):
        changes += compare_partitions(table, merged, stream.partition_fields)
    if not changes:
        return None
    if not impossible:
        partitions = list_partitions(table, merged, stream.partition_fields)
        impossible = list_name_clashes(merged, partitions)
    texts = [change.text for change in changes]
    decision = read_schema_decision(table.properties, stream.stream, stream.table.name)
    return SchemaReview(
        stream=stream.stream,
        table=stream.table.name,
        changes=changes,
        policy=choose_policy(changes, stream.schema_policy),
        impossible=tuple(impossible),
        review_id=_hash_review(table, stream.table.name, texts),
        decision=decision if decision and decision.changes == tuple(texts) else None,
        no_quarantine=_explain_no_quarantine(work.file_stream or stream, changes),
    )


def _hash_review(table: Table, name: str, texts: Sequence[str]) -> str:
    metadata = table.metadata
    accepted = _count_accepted(table.properties, name)
    ids = [metadata.current_schema_id, metadata.default_spec_id, accepted]
    parts = [str(metadata.table_uuid), ids, texts]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _has_edited_partitions(properties: Mapping[str, str], stream: Stream) -> bool:
    """Return whether `partition_by` of the file differs from the one that was applied last."""
    key = keys.partitions_key(stream.stream)
    wanted = file_properties(stream)[key]
    return properties.get(key, wanted) != wanted


def _read_columns(properties: Mapping[str, str], key: str, table: str) -> list[str]:
    """Return the columns that a stream wrote last, by the property that lists them."""
    without = (
        "the next run writes it again, from the stream file; a column that the file has dropped "
        "meanwhile then counts as another writer's and stays"
    )
    return read_property(properties, key, parse_texts, without, table) or []


def _count_accepted(properties: Mapping[str, str], table: str) -> int:
    """Count the accepted changes: it makes the review id of a change that comes again a new one."""
    changes = read_schema_changes(properties, table)
    return sum(change.answer == "accept" for _, change in changes)


def find_review(table: Table, work: Workspace) -> SchemaReview | None:
    """Return the review of a table that the stream has written to; `work` as `review_table`."""
    has_rows = has_begun(table.properties, work.stream.stream)
    return review_table(table, work) if has_rows else None


def read_quarantined(table: Table, work: Workspace) -> tuple[str, ...]:
    """List the columns whose records become dead letters, by a person's decision.

    Raises:
        SchemaReviewError, SchemaRefusedError: see `settle_schema`.
    """
    review = find_review(table, work)
    if review is None:
        return ()
    require_decision(review)
    return review.quarantined_columns


def require_decision(review: SchemaReview) -> None:
    """Raise unless the policy applies the changes or a person has chosen quarantine.

    Raises:
        SchemaReviewError, SchemaRefusedError: see `settle_schema`.
    """
    facts = f"stream {review.stream}: table {review.table} needs a schema change: {review.text}"
    back = "keep the table's columns and partitions in the stream file (list them if it does not)"
    if review.impossible:
        raise SchemaRefusedError(
            f"{facts}; not possible in place: {'; '.join(review.impossible)}",
            f"{back}, and add the new type under a new name; a state table with another key or "
            "order needs a stream with a new name and table",
        )
    if review.policy in {"fail", "quarantine"}:
        raise SchemaRefusedError(
            f"{facts}; the policy is {review.policy}, which rejects changes of the table",
            f"{back}, or set the policy under `schema:` to review",
        )
    accept = f"`{_accept_command(review)}`"
    decision = review.decision
    if decision is not None and decision.kind == "stop":
        raise SchemaReviewError(
            f"{facts}; {decision.by} stopped the stream at {decision.at}: {decision.reason}",
            f"{back}, or {accept}",
            review_id=review.review_id,
        )
    if review.policy == "review" and not review.quarantined_columns:
        raise SchemaReviewError(
            f"{facts}; it waits for a person's decision, no record is lost",
            "decide in Airflow under Required Actions (DAG review_schema; trigger it if no action "
            f"is listed), or {accept}; `frazil review-schema {review.stream}` shows the effects",
            review_id=review.review_id,
        )


def _accept_command(review: SchemaReview) -> str:
    return f"frazil review-schema {review.stream} --accept --by YOU --reason WHY"


def open_with_settled_schema(work: Workspace, view: TableView) -> Workspace:
    """Return the stream with its table's columns, for records that are read again.

    While a change is pending they would lose fields.

    Raises:
        SchemaReviewError, SchemaRefusedError: a change is pending.
        RegistryUnavailableError: see `with_newest_columns`.
    """
    table = view.found
    review = find_review(table, with_newest_columns(work, view)) if table is not None else None
    if review is None:
        return with_columns(work, view)
    require_decision(review)
    facts = f"stream {review.stream}: table {review.table} needs a schema change: {review.text}"
    accept = f"`{_accept_command(review)}`"
    if review.quarantined_columns:
        by = review.decision.by if review.decision else ""
        facts += f"; its records were quarantined by {by}, and would lose fields if read again now"
        next_step = f"{accept}, then try again"
    else:
        facts += "; the next run applies it, records can be read again after that"
        next_step = f"`frazil run {review.stream}` or {accept}, then try again"
    raise SchemaReviewError(facts, next_step, review_id=review.review_id)


@dataclass(frozen=True)
class ShownReview:
    """A review as text, and as facts for JSON."""

    text: str
    facts: Mapping[str, object]


def show_schema_review(work: Workspace) -> ShownReview:
    """Describe the pending changes and their effects."""
    view = TableView(work.store, work.stream.table.name)
    table = view.table  # a dropped one is told before what the registry says
    work = with_newest_columns(work, view)
    stream = work.stream
    review = find_review(table, work)
    if review is None:
        return ShownReview(f"table {stream.table.name} matches the stream file", {})
    point = view.find_point(stream.stream)
    offsets = plain_offsets(point.state.offsets) if point else {}
    lines = [f"review {review.review_id} of table {review.table}, policy {review.policy}:"]
    lines += [f"  {line}" for line in review.lines]
    lines += [f"  not possible in place: {text}" for text in review.impossible]
    decision = review.decision
    if decision is not None:
        lines.append(f"  decision: {decision.kind} by {decision.by}: {decision.reason}")
    if review.no_quarantine:
        lines.append(f"  Quarantine is unavailable: {review.no_quarantine}.")
    lines.append(f"  next offsets to read: {describe_next_offsets(offsets) or 'by source.start'}")
    facts = {
        "table": review.table,
        "review": review.review_id,
        "policy": review.policy,
        "changes": [change.text for change in review.changes],
        "effects": review.lines,
        "impossible": list(review.impossible),
        "answer": decision.model_dump() if decision else None,
        "barred": review.no_quarantine,
        "next_offsets": offsets,
    }
    return ShownReview("\n".join(lines), facts)


def read_schema_decision(
    properties: Mapping[str, str], stream: str, table: str
) -> SchemaDecision | None:
    """Read the stored decision of a stream, even if its changes are no longer pending.

    Raises:
        UnknownStateError: this release cannot read the decision; the error names `table`.
    """
    parse, without = SchemaDecision.model_validate_json, "the change waits for an answer again"
    return read_property(properties, keys.schema_answer_key(stream), parse, without, table)


def _list_impossible(table: Table, changes: tuple[SchemaChange, ...]) -> list[str]:
    """List the changes that Iceberg cannot make in place.

    These are changes inside a struct other than an addition or widening, and a drop or a new type
    of a column that a partition spec or sort order uses.
    """
    sources = {f.source_id for spec in table.specs().values() for f in spec.fields}
    sources |= {f.source_id for order in table.sort_orders().values() for f in order.fields}
    found = (table.schema().find_column_name(source) for source in sources)
    layout_columns = [name for name in found if name is not None]
    old_names = {change.after: change.path for change in changes if change.kind == "rename"}

    def decides_layout(change: SchemaChange) -> bool:
        old = old_names.get(change.path, change.path)
        return any(name == old or name.startswith(f"{old}.") for name in layout_columns)

    return [
        change.text
        for change in changes
        if not change.is_possible or (change.kind in _REPLACING and decides_layout(change))
    ]


def _list_state_conflicts(work: Workspace, changes: tuple[SchemaChange, ...]) -> list[str]:
    """List the changes that the stream's state table cannot follow.

    Once it has merged: a new column, type or drop of a column by which changes are folded. Always:
    a column that takes the name of a partition field.
    """
    stream = work.stream
    layout = stream.table.state
    state = work.store.find(layout.name) if layout is not None and changes else None
    if state is None:
        return []
    key = keys.merge_key(stream.stream)
    has_merged = any(s.summary is not None and s.summary[key] for s in state.metadata.snapshots)
    ids = {*stream.table.id_columns}
    folded_by = {*ids, *stream.sequence, stream.table.cdc_field}
    found = []
    for change in changes:
        is_added = change.kind.startswith("add")
        if has_merged and change.path in (ids if is_added else folded_by):
            if is_added or change.kind in _REPLACING:
                found.append(f"{change.text}: the state table's rows are found or ordered by it")
        elif _takes_partition_name(state, change):
            found.append(f"{change.text}: a partition field of the state table has this name")
    return found


def _takes_partition_name(state: Table, change: SchemaChange) -> bool:
    """Return whether a change gives a column the name of a partition field of another column.

    Names that differ only in case are one name to Spark.
    """
    is_rename = change.kind == "rename"
    name = change.after if is_rename else change.path
    if "." in change.path or change.kind in {"drop", "widen", "relax"}:
        return False
    own = {change.path, name} if is_rename else set()
    return any(
        field.name.lower() == name.lower()
        and not (
            isinstance(field.transform, IdentityTransform)
            and state.schema().find_column_name(field.source_id) in own
        )
        for spec in state.specs().values()
        for field in spec.fields
    )


def _list_shared(table: Table, stream: str, changes: tuple[SchemaChange, ...]) -> list[str]:
    """List the changes of columns that another stream writes to the same table."""
    own = keys.columns_key(stream)
    prefix = own.removesuffix(stream)
    others = {
        name: key.removeprefix(prefix)
        for key in table.properties
        if key.startswith(prefix) and key != own
        for name in _read_columns(table.properties, key, ".".join(table.name()))
    }
    return [
        f"{change.text}: stream {others[change.path.partition('.')[0]]} writes this column too"
        for change in changes
        if change.kind not in _HARMLESS and change.path.partition(".")[0] in others
    ]
