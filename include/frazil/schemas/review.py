"""What a stream file asks of its table, and whether policy or a person settles it.

Nothing here writes; `evolution.py` commits what is settled.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyiceberg.partitioning import PartitionField, validate_partition_name
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from frazil.errors import SchemaRefusedError, SchemaReviewError
from frazil.iceberg.ledger_archive import load_with_history
from frazil.iceberg.table_schema import to_columns
from frazil.ledger import keys
from frazil.ledger.offsets import plain_offsets
from frazil.ledger.recovery_point import find_recovery_point
from frazil.messages import MessagePart
from frazil.schemas.inferred_columns import with_columns, with_newest_columns
from frazil.schemas.merge import merge_schema
from frazil.schemas.partition_evolution import compare_partitions, list_partitions
from frazil.streams.models import Policy, Stream
from frazil.streams.schema_changes import EFFECTS, SchemaChange, choose_policy, compare_columns
from frazil.workspace import Workspace


class SchemaAnswer(MessagePart):
    """What a person said to some changes; it leaves the table as it is.

    `stop`: the stream rests. `quarantine`: it goes on, and records whose schema asks for one of the
    changes become dead letters.
    """

    kind: Literal["stop", "quarantine"]
    changes: tuple[str, ...]
    by: str
    reason: str
    at: str


@dataclass(frozen=True)
class SchemaReview:
    """What a stream file asks of its table."""

    stream: str
    table: str
    changes: tuple[SchemaChange, ...]
    policy: Policy
    impossible: tuple[str, ...]
    review_id: str
    answer: SchemaAnswer | None
    barred: str
    """Why this stream's records cannot be put aside; empty where they can."""

    @property
    def put_aside(self) -> tuple[str, ...]:
        """List the columns in question beside which the stream goes on, by a person's answer."""
        is_chosen = self.answer is not None and self.answer.kind == "quarantine"
        if not is_chosen or self.policy != "review" or self.barred or self.impossible:
            return ()
        return tuple(sorted({change.path for change in self.changes}))

    @property
    def text(self) -> str:
        """List the changes, a line each."""
        return "; ".join(change.text for change in self.changes)

    @property
    def lines(self) -> list[str]:
        """List the changes with what each does to the table."""
        return [f"{change.text} ({EFFECTS[change.kind]})" for change in self.changes]


def has_begun(properties: Mapping[str, str], stream: str) -> bool:
    """Say whether the stream has written to the table; before that a misfit is no change."""
    return keys.hint_key(stream) in properties


def file_properties(stream: Stream) -> dict[str, str]:
    """Write down what the file says, so that a column that is missing later is seen to be dropped.

    And that the file asks for other partitions, not the table that somebody made or changed.
    """
    names = [column.name for column in stream.parsed_columns]
    partitions = [field.text for field in stream.partition_fields]
    return {
        keys.columns_key(stream.stream): json.dumps(names),
        keys.partitions_key(stream.stream): json.dumps(partitions),
    }


def explain_unavailable_quarantine(stream: Stream, changes: Sequence[SchemaChange]) -> str:
    """Say why records of a stream, as its file has it, cannot be put aside; empty where they can.

    Only a schema id in front of each value tells which records ask for more, and a person who edits
    columns puts no record at fault.
    """
    if any(change.kind == "repartition" for change in changes):
        return "other partitions are the file's wish, and no record is at fault"
    if not (stream.value.needs_columns and stream.value.convert == "by_schema_id"):
        return "only records that name a registered schema, whose columns no file lists, can wait"
    if stream.key.needs_type:
        return "its keys follow a registered schema too"
    if stream.route is not None:
        return "a route shares its topic, and what one table waits for another may take"
    if stream.errors.tolerance != "quarantine":
        return f"errors.tolerance is {stream.errors.tolerance}, which keeps no dead letters"
    return ""


def review_table(table: Table, work: Workspace) -> SchemaReview | None:
    """Compare the table with the stream file, or what its schema adds; None where they agree.

    `work` has the newest columns already.
    """
    stream = work.stream
    written = json.loads(table.properties.get(keys.columns_key(stream.stream), "[]"))
    schema = table.schema()
    have = to_columns(f for f in schema.fields if f.name != keys.KAFKA_COLUMN)
    changes = compare_columns(have, stream.parsed_columns, frozenset(written))
    impossible = list_impossible(table, changes)
    impossible += list_shared(table, stream.stream, changes)
    merged = schema
    if changes and not impossible:
        columns = stream.parsed_columns
        merged = merge_schema(schema, table.metadata.last_column_id, columns, changes)
    if not impossible and has_edited_partitions(table.properties, stream):
        changes += compare_partitions(table, merged, stream.partition_fields)
    if not changes:
        return None
    if not impossible:
        partitions = list_partitions(table, merged, stream.partition_fields)
        impossible = list_used_names(merged, partitions)
    texts = [change.text for change in changes]
    metadata = table.metadata
    ids = [schema.schema_id, metadata.default_spec_id, _count_accepted(table.properties)]
    parts = [str(metadata.table_uuid), ids, texts]
    review_id = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    answer = read_schema_answer(table.properties, stream.stream)
    return SchemaReview(
        stream=stream.stream,
        table=stream.table.name,
        changes=changes,
        policy=choose_policy(changes, stream.schema_policy),
        impossible=tuple(impossible),
        review_id=review_id,
        answer=answer if answer and answer.changes == tuple(texts) else None,
        barred=explain_unavailable_quarantine(work.written or stream, changes),
    )


def has_edited_partitions(properties: Mapping[str, str], stream: Stream) -> bool:
    """Say whether the file asks for other partitions than when it was last followed."""
    said = file_properties(stream)[keys.partitions_key(stream.stream)]
    return properties.get(keys.partitions_key(stream.stream), said) != said


def _count_accepted(properties: Mapping[str, str]) -> int:
    """Count the changes that were made: the same question may come again behind them."""
    texts = [text for key, text in properties.items() if key.startswith(keys.SCHEMA_CHANGE_PREFIX)]
    return sum(json.loads(text).get("answer") == "accept" for text in texts)


def find_review(table: Table, work: Workspace) -> SchemaReview | None:
    """Find what the stream asks of a table that it has begun to fill; `work` as `review_table`."""
    has_rows = has_begun(table.properties, work.stream.stream)
    return review_table(table, work) if has_rows else None


def read_quarantined(table: Table, work: Workspace) -> tuple[str, ...]:
    """List the columns whose records a person has put aside.

    Raises:
        SchemaReviewError, SchemaRefusedError: see `settle_schema`.
    """
    review = find_review(table, work)
    if review is None:
        return ()
    require_decision(review)
    return review.put_aside


def require_decision(review: SchemaReview) -> None:
    """Refuse changes that policy does not make by itself.

    Raises:
        SchemaReviewError, SchemaRefusedError: see `settle_schema`.
    """
    facts = (
        f"stream {review.stream}: its file and table {review.table} no longer agree: {review.text}"
    )
    back = "put what the table has into the stream file (value.columns, table.partition_by)"
    if review.impossible:
        raise SchemaRefusedError(
            f"{facts}; no table can follow this in place: {'; '.join(review.impossible)}",
            f"{back}, and give the new form a new name",
        )
    if review.policy in {"fail", "quarantine"}:
        raise SchemaRefusedError(
            f"{facts}; the policy is {review.policy}, and no record is at fault",
            f"{back}, or set the policy under `schema:` to review",
        )
    accept = f"`frazil review-schema {review.stream} --accept --by YOU --reason WHY`"
    answer = review.answer
    if answer is not None and answer.kind == "stop":
        raise SchemaReviewError(
            f"{facts}; {answer.by} stopped it at {answer.at}: {answer.reason}",
            f"{back}, or {accept}",
            review_id=review.review_id,
        )
    if review.policy == "review" and not review.put_aside:
        raise SchemaReviewError(
            f"{facts}; a person decides, the stream waits, nothing is lost",
            f"answer in Airflow under Required Actions (DAG review_schema; started by hand it asks "
            f"again), or {accept}; "
            f"`frazil review-schema {review.stream}` shows what it does",
            review_id=review.review_id,
        )


def open_with_settled_schema(work: Workspace) -> Workspace:
    """Give the stream with its table's columns, for records that are read again.

    By columns that are about to change they would lose fields.

    Raises:
        SchemaReviewError, SchemaRefusedError: a person or the next run changes the table first.
        RegistryUnavailableError: see `with_newest_columns`.
    """
    table = work.store.find(work.stream.table.name)
    review = find_review(table, with_newest_columns(work)) if table is not None else None
    if review is None:
        return with_columns(work)
    require_decision(review)
    facts = f"stream {review.stream}: table {review.table} and its stream differ: {review.text}"
    if not review.put_aside:
        raise SchemaReviewError(
            f"{facts}; by policy the table follows with the next run, and only then can records "
            "be read again",
            f"`frazil run {review.stream}`, or `frazil review-schema {review.stream} --accept "
            "--by YOU --reason WHY`; then again",
            review_id=review.review_id,
        )
    by = review.answer.by if review.answer else ""
    raise SchemaReviewError(
        f"{facts}; records that ask for it are put aside, by {by}: read again now they would lose "
        "what the table cannot hold",
        f"`frazil review-schema {review.stream} --accept --by YOU --reason WHY`, then again",
        review_id=review.review_id,
    )


@dataclass(frozen=True)
class ShownReview:
    """A review for people and, as facts, for programs."""

    text: str
    facts: Mapping[str, object]


def show_schema_review(work: Workspace) -> ShownReview:
    """Show what waits and what it would do; nothing is written."""
    work = with_newest_columns(work)
    stream = work.stream
    table, history = load_with_history(work.store, stream.table.name)
    review = find_review(table, work)
    if review is None:
        return ShownReview(f"table {stream.table.name} agrees with the stream file", {})
    point = find_recovery_point(history, stream.stream)
    offsets = plain_offsets(point.state.offsets) if point else {}
    lines = [f"review {review.review_id} of table {review.table}, policy {review.policy}:"]
    lines += [f"  {line}" for line in review.lines]
    lines += [f"  impossible in place: {text}" for text in review.impossible]
    if review.answer is not None:
        lines.append(f"  {review.answer.kind} by {review.answer.by}: {review.answer.reason}")
    if review.barred:
        lines.append(f"  its records cannot be put aside: {review.barred}")
    lines.append(f"  the first records to be read with it: {offsets}")
    facts = {
        "review": review.review_id,
        "policy": review.policy,
        "changes": [change.text for change in review.changes],
        "effects": review.lines,
        "impossible": list(review.impossible),
        "answer": review.answer.model_dump() if review.answer else None,
        "barred": review.barred,
        "next_offsets": offsets,
    }
    return ShownReview("\n".join(lines), facts)


def read_schema_answer(properties: Mapping[str, str], stream: str) -> SchemaAnswer | None:
    """Read the answer that is kept for a stream, whether it is in question still or not."""
    text = properties.get(keys.schema_answer_key(stream))
    return SchemaAnswer.model_validate_json(text) if text else None


_REPLACING = frozenset({"narrow", "change_type", "drop"})


_HARMLESS = frozenset({"add_column", "add_required", "widen", "relax"})


def list_impossible(table: Table, changes: tuple[SchemaChange, ...]) -> list[str]:
    """List what no table can follow in place, and what its files are laid out by."""
    sources = {f.source_id for spec in table.specs().values() for f in spec.fields}
    sources |= {f.source_id for order in table.sort_orders().values() for f in order.fields}
    found = (table.schema().find_column_name(source) for source in sources)
    laid_out = [name for name in found if name is not None]
    old_names = {change.after: change.path for change in changes if change.kind == "rename"}

    def decides_layout(change: SchemaChange) -> bool:
        old = old_names.get(change.path, change.path)
        return any(name == old or name.startswith(f"{old}.") for name in laid_out)

    return [
        change.text
        for change in changes
        if not change.is_possible or (change.kind in _REPLACING and decides_layout(change))
    ]


def list_shared(table: Table, stream: str, changes: tuple[SchemaChange, ...]) -> list[str]:
    """List changes of columns that another stream of the table writes too."""
    own = keys.columns_key(stream)
    prefix = own.removesuffix(stream)
    others = {
        name: key.removeprefix(prefix)
        for key, text in table.properties.items()
        if key.startswith(prefix) and key != own
        for name in json.loads(text)
    }
    return [
        f"{change.text}, which stream {others[change.path.partition('.')[0]]} writes too"
        for change in changes
        if change.kind not in _HARMLESS and change.path.partition(".")[0] in others
    ]


def list_used_names(schema: Schema, partitions: Sequence[PartitionField]) -> list[str]:
    """List clashes of a column's name with a partition field's: Spark could load no such table."""
    clashes = []
    for field in partitions:
        try:
            validate_partition_name(field.name, field.transform, field.source_id, schema, set())
        except ValueError as error:
            clashes.append(f"{field.name}: {error}")
    return clashes
