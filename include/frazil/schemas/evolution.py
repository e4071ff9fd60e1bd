"""Apply the changes of a stream file or a registered schema to the table, or record a rejection.

A change is made by the schema policy or by a named person, in one commit before the batch is
staged (never by Spark's `mergeSchema`); the commit records who made it and why. A change without a
decision stops its stream, not other streams on the table.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil.errors import NothingToDecideError, SchemaRefusedError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.table_schema import replace_schema
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.ledger.stored_properties import SchemaChangeRecord, read_schema_changes
from frazil.schemas.inferred_columns import read_pending_schemas, with_columns, with_newest_columns
from frazil.schemas.merge import merge_schema
from frazil.schemas.partition_evolution import repartition
from frazil.schemas.review import (
    SchemaDecision,
    SchemaReview,
    file_properties,
    find_review,
    require_decision,
    review_table,
)
from frazil.workspace import Workspace


@dataclass(frozen=True)
class SettledSchema:
    """A stream and its table, which now match.

    Records that need one of the `quarantined_columns` become dead letters, by a person's decision.
    """

    work: Workspace
    view: TableView
    quarantined_columns: tuple[str, ...] = ()


def settle_schema(work: Workspace, view: TableView | None = None) -> SettledSchema:
    """Apply the changes that the policy allows, and return the stream with the table's columns.

    The first attempt decides on `view`; each further one loads the table again.

    Raises:
        SchemaReviewError: a change needs a person's decision; it is at most marked as pending.
        SchemaRefusedError: the policy or the table forbids a change; nothing was written.
    """
    first = view or TableView(work.store, work.stream.table.name)
    work, views = with_newest_columns(work, first), iterate_views(first)

    def attempt() -> SettledSchema:
        seen = next(views)
        review = review_table(seen.table, work)
        if review is None:
            commits_made = [
                _store_file_properties(work, seen.table),
                _clear_pending_schemas(work, seen.table),
            ]
            return SettledSchema(work, seen.reload() if any(commits_made) else seen)
        needs_person = review.policy == "review" and not review.impossible
        if needs_person and store_pending_schemas(work, seen.table):
            seen = seen.reload()
        require_decision(review)
        if review.quarantined_columns:
            file_stream = work.file_stream or work.stream
            fitting = with_columns(work.with_stream(file_stream, file_stream), seen)
            return SettledSchema(fitting, seen, review.quarantined_columns)
        rule = ", ".join(sorted({change.kind for change in review.changes}))
        _evolve(work, seen.table, review, Author("policy", f"schema policy auto: {rule}"))
        return SettledSchema(work, seen.reload())

    return retry_commit(f"changing the schema of {work.stream.table.name}", attempt)


def accept_schema(work: Workspace, author: Author, review_id: str | None = None) -> Decision:
    """Apply the pending changes; `review_id` restricts this to the review that was read.

    Raises:
        NothingToDecideError: no change is pending, or another review is.
        SchemaRefusedError: the table or the policy forbids a change.
    """
    tried: list[tuple[int, Decision]] = []

    def attempt() -> Decision:
        view = TableView(work.store, work.stream.table.name)
        made = read_schema_changes(view.table.properties, view.name)
        if tried and _is_recorded(made[tried[-1][0] :], author):
            return tried[-1][1]  # the attempt before was committed, its response was lost
        known = with_newest_columns(work, view)
        review = _read_open_review(known, view, review_id)
        if review.impossible or review.policy in {"fail", "quarantine"}:
            require_decision(review)
        decision = Decision("accept", f"{review.table}: {review.text}")
        tried.append((len(made), decision))
        _evolve(known, view.table, review, author)
        return decision

    return retry_commit(f"changing the schema of {work.stream.table.name}", attempt)


def stop_schema(work: Workspace, author: Author, review_id: str | None = None) -> Decision:
    """Record a rejection: the stream stays stopped until its file changes or it is accepted.

    Raises:
        NothingToDecideError: no change is pending, or another review is.
    """

    def describe(review: SchemaReview) -> str:
        return f"{review.stream} is stopped; not applied: {review.text}"

    return _record_decision(work, "stop", author, review_id, describe)


def quarantine_schema(work: Workspace, author: Author, review_id: str | None = None) -> Decision:
    """Continue without the change: records whose schema requires it become dead letters.

    After the change is accepted, `replay_dead_letters` restores them.

    Raises:
        NothingToDecideError: no change is pending, or another review is.
        SchemaRefusedError: the stream cannot quarantine records, or the policy forbids it.
    """

    def describe(review: SchemaReview) -> str:
        if review.impossible or review.policy in {"fail", "quarantine"}:
            require_decision(review)
        if review.policy == "auto":
            raise NothingToDecideError(
                f"stream {review.stream}: the schema policy applies this change by itself: "
                f"{review.text}",
                f"`frazil run {review.stream}` applies it; to decide yourself, first set the "
                "policy under `schema:` to review",
            )
        if review.no_quarantine:
            raise SchemaRefusedError(
                f"stream {review.stream}: quarantine is unavailable: {review.no_quarantine}; still "
                f"pending: {review.text}",
                f"`frazil review-schema {review.stream}` with --accept or --stop",
            )
        return (
            f"{review.stream} continues without this change, and records whose schema requires it "
            f"become dead letters: {review.text}"
        )

    return _record_decision(work, "quarantine", author, review_id, describe)


def _record_decision(
    work: Workspace,
    kind: Literal["stop", "quarantine"],
    author: Author,
    review_id: str | None,
    describe: Callable[[SchemaReview], str],
) -> Decision:
    """Record a decision that keeps the schema; the same decision again commits nothing."""

    def attempt() -> Decision:
        view = TableView(work.store, work.stream.table.name)
        table = view.table  # a dropped one is told before what the registry says
        known = with_newest_columns(work, view)
        review = _read_open_review(known, view, review_id)
        decision = Decision(kind, describe(review))
        by, reason = author.by, author.reason
        found = review.decision
        if found is None or (found.kind, found.by, found.reason) != (kind, by, reason):
            changes = tuple(change.text for change in review.changes)
            new = SchemaDecision(kind=kind, changes=changes, by=by, reason=reason, at=_format_now())
            properties = {keys.schema_answer_key(review.stream): new.model_dump_json()}
            properties |= _describe_decision(table, review, author, kind)
            properties |= _list_pending(known, table)
            commit_once(work.store, table, {}, [commits.set_properties(properties)])
        return decision

    return retry_commit(f"recording a schema decision of {work.stream.stream}", attempt)


def store_pending_schemas(work: Workspace, table: Table) -> bool:
    """Store which schemas require a change, so that a newer schema does not hide it.

    Returns:
        Whether this made a commit.
    """
    properties = _list_pending(work, table)
    if properties:
        commit_once(work.store, table, {}, [commits.set_properties(properties)])
    return bool(properties)


def _list_pending(work: Workspace, table: Table) -> dict[str, str]:
    """Return the pending schema ids as a table property; empty if it is stored already.

    A change of the stream file needs no such property: the file still shows it.
    """
    stored = read_pending_schemas(table.properties, work.stream.stream, work.stream.table.name)
    new = [number for number in work.added_schema_ids if number not in stored]
    key = keys.schema_question_key(work.stream.stream)
    return {key: json.dumps([*stored, *new])} if new else {}


def _clear_pending_schemas(work: Workspace, table: Table) -> bool:
    """Remove pending schemas whose columns the table has, unless another was added meanwhile.

    Returns:
        Whether this made a commit.
    """
    name = work.stream.stream
    stored = read_pending_schemas(table.properties, name, work.stream.table.name)
    is_settled = bool(stored) and set(stored) <= set(work.added_schema_ids)
    if is_settled:
        commit_once(work.store, table, {}, _remove_pending(table, name))
    return is_settled


def _remove_pending(table: Table, stream: str) -> list[TableUpdate]:
    both = (keys.schema_question_key(stream), keys.schema_answer_key(stream))
    found = [key for key in both if key in table.properties]
    return [commits.remove_properties(found)] if found else []


def _read_open_review(work: Workspace, view: TableView, review_id: str | None) -> SchemaReview:
    name = work.stream.stream
    review = find_review(view.table, work)
    if review is None:
        raise NothingToDecideError(
            f"stream {name}: table {work.stream.table.name} matches the stream file; there is no "
            "change to decide",
            f"`frazil plan {name}` shows the next batch",
        )
    if review_id not in {None, review.review_id}:
        raise NothingToDecideError(
            f"stream {name}: review {review_id} is closed; now pending is review "
            f"{review.review_id}: {review.text}",
            f"`frazil review-schema {name}` shows its effects",
        )
    return review


def _is_recorded(made: Sequence[tuple[int, SchemaChangeRecord]], author: Author) -> bool:
    """Return whether an acceptance by this author is among decisions."""
    wanted = (author.by, author.reason, "accept")
    return any((record.by, record.reason, record.answer) == wanted for _, record in made)


def _store_file_properties(work: Workspace, table: Table) -> bool:
    """Store the file's columns and partitions where they are absent or the partitions differ.

    Returns:
        Whether this made a commit.
    """
    wanted = file_properties(work.stream)
    key = keys.partitions_key(work.stream.stream)
    is_new = keys.columns_key(work.stream.stream) not in table.properties or (
        table.properties.get(key) != wanted[key]
    )
    if is_new:
        commit_once(work.store, table, {}, [commits.set_properties(wanted)])
    return is_new


def _evolve(work: Workspace, table: Table, review: SchemaReview, author: Author) -> None:
    """Commit the new schema and partitions, who decided them, and the stream's columns."""
    metadata = table.metadata
    columns = work.stream.parsed_columns
    merged = merge_schema(table.schema(), metadata.last_column_id, columns, review.changes)
    updates, schema_id = replace_schema(metadata, merged)
    properties = _describe_decision(table, review, author, "accept", schema_id)
    updates.append(commits.set_properties(properties | file_properties(work.stream)))
    if any(change.kind == "repartition" for change in review.changes):
        updates += repartition(table, merged, work.stream.partition_fields)
    updates += _remove_pending(table, review.stream)
    reach_failpoint("plan.before-evolution")
    commit_once(work.store, table, {}, updates)
    reach_failpoint("plan.after-evolution")


def _describe_decision(
    table: Table, review: SchemaReview, author: Author, kind: str, schema_id: int | None = None
) -> dict[str, str]:
    """Return the decision as a table property of its own, numbered after the earlier ones."""
    record = {
        "stream": review.stream,
        "by": author.by,
        "reason": author.reason,
        "at": _format_now(),
        "schema-id": table.schema().schema_id if schema_id is None else schema_id,
        "answer": kind,
        "changes": [change.text for change in review.changes],
    }
    recorded = read_schema_changes(table.properties, review.table)
    number = recorded[-1][0] + 1 if recorded else 1
    if kind != "accept":
        # The commit does not compare properties: two streams could use the same number at once.
        number = max(number, time.time_ns() // 1_000_000)
    return {f"{keys.SCHEMA_CHANGE_PREFIX}{number}": json.dumps(record)}


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
