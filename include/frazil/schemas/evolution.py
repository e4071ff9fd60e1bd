"""A table follows its stream file: by policy, or by a named person's answer.

An evolution is one commit of its own before anything is staged, never Spark's `mergeSchema`. It
writes the new schema, who decided it and why. What nobody has decided stops the stream, and no
other, with an error that names the command.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from pyiceberg.table import Table
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate

from frazil.errors import NothingToDecideError, SchemaRefusedError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.schemas.inferred_columns import read_pending_schemas, with_columns, with_newest_columns
from frazil.schemas.merge import merge_schema
from frazil.schemas.partition_evolution import repartition
from frazil.schemas.review import (
    SchemaAnswer,
    SchemaReview,
    file_properties,
    find_review,
    require_decision,
    review_table,
)
from frazil.workspace import Workspace


@dataclass(frozen=True)
class SchemaDecision:
    """An answer that leaves the schema as it is; `review_id` pins what the person has seen."""

    kind: Literal["stop", "quarantine"]
    author: Author
    review_id: str | None


def settle_schema(work: Workspace) -> Workspace:
    """Let the table follow the stream file where policy says so, and give the stream it then fits.

    Raises:
        SchemaReviewError: a person decides; at most the question was written.
        SchemaRefusedError: policy or the table forbids it; nothing was written.
    """
    work = with_newest_columns(work)

    def turn() -> Workspace:
        table = work.store.load(work.stream.table.name)
        review = review_table(table, work)
        if review is None:
            _remember_file(work, table)
            _forget_question(work, table)
            return work
        if review.policy == "review" and not review.impossible:
            store_question(work, table)
        require_decision(review)
        if review.put_aside:
            return with_columns(replace(work, stream=work.written or work.stream))
        rule = ", ".join(sorted({change.kind for change in review.changes}))
        _evolve(work, table, review, Author("policy", f"schema policy auto: {rule}"))
        return work

    return retry_commit(f"changing the schema of {work.stream.table.name}", turn)


def accept_schema(work: Workspace, author: Author, review_id: str | None = None) -> Decision:
    """Make the changes that wait for a person; `review_id` pins what the person has seen.

    Raises:
        NothingToDecideError: nothing waits, or something else than what was seen.
        SchemaRefusedError: no table can follow, or the policy forbids it.
    """
    work = with_newest_columns(work)
    tried: list[Decision] = []

    def turn() -> Decision:
        try:
            table, review = _read_open_review(work, review_id)
        except NothingToDecideError:
            if tried and _is_recorded(work, author):
                return tried[-1]  # the answer to an earlier turn was lost
            raise
        if review.impossible or review.policy in {"fail", "quarantine"}:
            require_decision(review)
        tried.append(Decision("accept", f"{review.table}: {review.text}"))
        _evolve(work, table, review, author)
        return tried[-1]

    return retry_commit(f"changing the schema of {work.stream.table.name}", turn)


def stop_schema(work: Workspace, author: Author, review_id: str | None = None) -> Decision:
    """Record a person's no; the stream rests until its file changes or somebody accepts.

    Raises:
        NothingToDecideError: nothing waits, or something else than what was seen.
    """

    def describe(review: SchemaReview) -> str:
        return f"{review.stream} rests; not changed: {review.text}"

    return _answer(work, SchemaDecision("stop", author, review_id), describe)


def quarantine_schema(work: Workspace, author: Author, review_id: str | None = None) -> Decision:
    """Let the stream go on without the change: records whose schema asks for it become letters.

    They come back by `replay_dead_letters` once somebody accepts.

    Raises:
        NothingToDecideError: nothing waits, or something else than what was seen.
        SchemaRefusedError: nothing tells such records from others, or the policy forbids it.
    """

    def describe(review: SchemaReview) -> str:
        if review.impossible or review.policy in {"fail", "quarantine"}:
            require_decision(review)
        if review.policy == "auto":
            raise NothingToDecideError(
                f"stream {review.stream}: policy lets the table follow by itself: {review.text}",
                "set the policy under `schema:` to review, then answer again",
            )
        if review.barred:
            raise SchemaRefusedError(
                f"stream {review.stream}: no record can be put aside: {review.barred}; still in "
                f"question: {review.text}",
                f"`frazil review-schema {review.stream}` with --accept or --stop",
            )
        return f"{review.stream} goes on; put aside are records that ask for {review.text}"

    return _answer(work, SchemaDecision("quarantine", author, review_id), describe)


def _answer(
    work: Workspace, said: SchemaDecision, describe: Callable[[SchemaReview], str]
) -> Decision:
    """Record an answer that leaves the schema as it is; the same one twice is written once."""
    work = with_newest_columns(work)

    def turn() -> Decision:
        table, review = _read_open_review(work, said.review_id)
        decision = Decision(said.kind, describe(review))
        by, reason = said.author.by, said.author.reason
        found = review.answer
        if found is None or (found.kind, found.by, found.reason) != (said.kind, by, reason):
            answer = SchemaAnswer(
                kind=said.kind,
                changes=tuple(change.text for change in review.changes),
                by=by,
                reason=reason,
                at=_say_now(),
            )
            properties = {keys.schema_answer_key(review.stream): answer.model_dump_json()}
            properties |= _record(table, review, said.author, said.kind)
            properties |= _list_asking(work, table)
            commit_once(work.store, table, {}, [commits.set_properties(properties)])
        return decision

    return retry_commit(f"answering the schema review of {work.stream.stream}", turn)


def store_question(work: Workspace, table: Table) -> None:
    """Write down which schemas ask: a newer one that does not would hide the question."""
    asking = _list_asking(work, table)
    if asking:
        commit_once(work.store, table, {}, [commits.set_properties(asking)])


def _list_asking(work: Workspace, table: Table) -> dict[str, str]:
    """List the schemas in question as a property; empty where it says so already.

    A question about the file needs no note: the file asks again.
    """
    kept = read_pending_schemas(table.properties, work.stream.stream)
    new = [number for number in work.added_schema_ids if number not in kept]
    return {keys.schema_question_key(work.stream.stream): json.dumps([*kept, *new])} if new else {}


def _forget_question(work: Workspace, table: Table) -> None:
    """Drop a question whose columns the table has got by other ways, unless it is a newer one."""
    name = work.stream.stream
    kept = read_pending_schemas(table.properties, name)
    if kept and set(kept) <= set(work.added_schema_ids):
        commit_once(work.store, table, {}, _remove_question(table, name))


def _remove_question(table: Table, stream: str) -> list[TableUpdate]:
    both = (keys.schema_question_key(stream), keys.schema_answer_key(stream))
    found = [key for key in both if key in table.properties]
    return [commits.remove_properties(found)] if found else []


def _read_open_review(work: Workspace, review_id: str | None) -> tuple[Table, SchemaReview]:
    name = work.stream.stream
    table = work.store.load(work.stream.table.name)
    review = find_review(table, work)
    if review is None:
        raise NothingToDecideError(
            f"stream {name}: table {work.stream.table.name} agrees with the stream file",
            f"`frazil plan {name}` shows the next batch",
        )
    if review_id not in {None, review.review_id}:
        raise NothingToDecideError(
            f"stream {name}: review {review_id} is over; the stream file now asks for "
            f"{review.text} (review {review.review_id})",
            f"`frazil review-schema {name}` shows what it does",
        )
    return table, review


def list_schema_changes(properties: Mapping[str, str]) -> list[tuple[int, str]]:
    """List the numbers of the recorded changes with their texts."""
    prefix = keys.SCHEMA_CHANGE_PREFIX
    found = [
        (name.removeprefix(prefix), text)
        for name, text in properties.items()
        if name.startswith(prefix)
    ]
    return sorted((int(number), text) for number, text in found if number.isdecimal())


def _is_recorded(work: Workspace, author: Author) -> bool:
    """Say whether the newest recorded change is this person's, for this reason."""
    changes = list_schema_changes(work.store.load(work.stream.table.name).properties)
    newest = json.loads(changes[-1][1]) if changes else {}
    said = (newest.get("by"), newest.get("reason"), newest.get("answer"))
    return said == (author.by, author.reason, "accept")


def _remember_file(work: Workspace, table: Table) -> None:
    """Write down what the file of a stream says that did not create its table, or by now."""
    said = file_properties(work.stream)
    key = keys.partitions_key(work.stream.stream)
    if keys.columns_key(work.stream.stream) not in table.properties or (
        table.properties.get(key) != said[key]
    ):
        commit_once(work.store, table, {}, [commits.set_properties(said)])


def _evolve(work: Workspace, table: Table, review: SchemaReview, author: Author) -> int:
    """Commit the new schema, who decided it, and which columns the stream writes now."""
    metadata = table.metadata
    columns = work.stream.parsed_columns
    merged = merge_schema(table.schema(), metadata.last_column_id, columns, review.changes)
    # By comparison: equal structs of PyIceberg have different hashes.
    same = (s.schema_id for s in metadata.schemas if s.as_struct() == merged.as_struct())
    found = next(same, None)
    schema_id = max(s.schema_id for s in metadata.schemas) + 1 if found is None else found
    updates: list[TableUpdate] = []
    if found is None:
        merged = merged.model_copy(update={"schema_id": schema_id})
        updates += [AddSchemaUpdate(schema_=merged), SetCurrentSchemaUpdate(schema_id=-1)]
    elif found != metadata.current_schema_id:
        updates.append(SetCurrentSchemaUpdate(schema_id=found))
    properties = _record(table, review, author, "accept", schema_id)
    updates.append(commits.set_properties(properties | file_properties(work.stream)))
    if any(change.kind == "repartition" for change in review.changes):
        updates += repartition(table, merged, work.stream.partition_fields)
    updates += _remove_question(table, review.stream)
    reach_failpoint("plan.before-evolution")
    commit_once(work.store, table, {}, updates)
    reach_failpoint("plan.after-evolution")
    return schema_id


def _record(
    table: Table, review: SchemaReview, author: Author, answer: str, schema_id: int | None = None
) -> dict[str, str]:
    """Write an answer down for good, beside those before it."""
    record = {
        "stream": review.stream,
        "by": author.by,
        "reason": author.reason,
        "at": _say_now(),
        "schema-id": table.schema().schema_id if schema_id is None else schema_id,
        "answer": answer,
        "changes": [change.text for change in review.changes],
    }
    number = max((number for number, _ in list_schema_changes(table.properties)), default=0) + 1
    if answer != "accept":  # nothing compares and sets it: two streams may answer at once
        number = max(number, time.time_ns() // 1_000_000)
    return {f"{keys.SCHEMA_CHANGE_PREFIX}{number}": json.dumps(record)}


def _say_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
