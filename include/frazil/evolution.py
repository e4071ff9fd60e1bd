"""A table follows its stream file: by policy, or by a named person's answer.

An evolution is one commit of its own before anything is staged, never Spark's `mergeSchema`. It
writes the new schema, who decided it and why. What nobody has decided stops the stream, and no
other, with an error that names the command.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate

from frazil import commits, keys
from frazil.authors import Author, Decision
from frazil.derived_columns import with_newest_columns
from frazil.errors import NothingToDecideError
from frazil.failpoints import reach_failpoint
from frazil.publishing import commit_turn
from frazil.schema_merge import merge_schema
from frazil.schema_review import (
    SchemaReview,
    StopAnswer,
    columns_property,
    has_begun,
    refuse_undecided,
    review_table,
)
from frazil.turns import take_turns
from frazil.workspace import Workspace


def settle_schema(work: Workspace) -> None:
    """Let the table follow the stream file where policy says so.

    Raises:
        SchemaReviewError: a person decides; nothing was written.
        SchemaRefusedError: policy or the table forbids it; nothing was written.
    """
    work = with_newest_columns(work)

    def turn() -> None:
        table = work.store.load(work.stream.table.name)
        review = review_table(table, work.stream)
        if review is None:
            _remember_columns(work, table)
            return
        refuse_undecided(review)
        rule = ", ".join(sorted({change.kind for change in review.changes}))
        _evolve(work, table, review, Author("policy", f"schema policy auto: {rule}"))

    take_turns(f"changing the schema of {work.stream.table.name}", turn)


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
            refuse_undecided(review)
        tried.append(Decision("accept", f"{review.table}: {review.text}"))
        _evolve(work, table, review, author)
        return tried[-1]

    return take_turns(f"changing the schema of {work.stream.table.name}", turn)


def stop_schema(work: Workspace, author: Author, review_id: str | None = None) -> Decision:
    """Record a person's no; the stream rests until its file changes or somebody accepts.

    Raises:
        NothingToDecideError: nothing waits, or something else than what was seen.
    """
    work = with_newest_columns(work)

    def turn() -> Decision:
        table, review = _read_open_review(work, review_id)
        answer = StopAnswer(
            review=review.review_id, by=author.by, reason=author.reason, at=_say_now()
        )
        key = keys.schema_answer_key(review.stream)
        update = commits.set_properties({key: answer.model_dump_json()})
        commit_turn(work.store, table, {}, [update])
        return Decision("stop", f"{review.stream} rests; not changed: {review.text}")

    return take_turns(f"answering the schema review of {work.stream.stream}", turn)


def _read_open_review(work: Workspace, review_id: str | None) -> tuple[Table, SchemaReview]:
    name = work.stream.stream
    table = work.store.load(work.stream.table.name)
    review = review_table(table, work.stream) if has_begun(table.properties, name) else None
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
    return (newest.get("by"), newest.get("reason")) == (author.by, author.reason)


def _remember_columns(work: Workspace, table: Table) -> None:
    """Write down once which columns a stream writes that did not create its table."""
    if keys.columns_key(work.stream.stream) not in table.properties:
        commit_turn(work.store, table, {}, [commits.set_properties(columns_property(work.stream))])


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
    record = {
        "stream": review.stream,
        "by": author.by,
        "reason": author.reason,
        "at": _say_now(),
        "schema-id": schema_id,
        "changes": [change.text for change in review.changes],
    }
    number = max((number for number, _ in list_schema_changes(table.properties)), default=0) + 1
    properties = {f"{keys.SCHEMA_CHANGE_PREFIX}{number}": json.dumps(record)}
    updates.append(commits.set_properties(properties | columns_property(work.stream)))
    if keys.schema_answer_key(review.stream) in table.properties:
        updates.append(commits.remove_properties([keys.schema_answer_key(review.stream)]))
    reach_failpoint("plan.before-evolution")
    commit_turn(work.store, table, {}, updates)
    reach_failpoint("plan.after-evolution")
    return schema_id


def _say_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
