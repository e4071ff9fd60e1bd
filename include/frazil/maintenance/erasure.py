"""ERASE: take out every row and dead letter of a key, on a named person's word.

The table's own snapshot goes first and lists the rows and the letters; the letters then leave their
table by that list, so that a run that was killed in between is finished by the next one, whatever
it erases (decision record 16).
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import In
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import TableUpdate

from frazil.errors import FrazilError, MissingTableError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.branches import PREFIX
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.ledger_archive import load_with_history
from frazil.iceberg.row_changes import (
    RetainedRows,
    collect_offsets,
    count_rows,
    require_current_spec,
)
from frazil.ingest.dead_letters import Flags
from frazil.ledger import keys
from frazil.ledger.authors import Author, require_not_dry_run
from frazil.ledger.coordinates import (
    Coordinates,
    DeadLetterCoordinates,
    count_coordinates,
    join_dead_letters,
    subtract_coordinates,
)
from frazil.ledger.deletions import Deletion, parse_deleted_dead_letters
from frazil.ledger.recovery_point import (
    History,
    PublishedBatch,
    find_recovery_point,
    walk_ancestors,
)
from frazil.maintenance.erasure_keys import (
    RAW_KEY,
    ErasedKeys,
    find_letters,
    find_wanted,
    load_keys,
    validate_no_key_in_text,
)
from frazil.maintenance.messages import Erased, ErasurePlan, ErasureRequest
from frazil.maintenance.row_deletion import (
    RowsToDelete,
    build_deletion,
    delete_rows,
    find_rows,
    sort_offsets,
)
from frazil.streams.models import Stream
from frazil.streams.routes import derived_name
from frazil.streams.timestamps import HOUR_MS
from frazil.workspace import Workspace, retention_window


def plan_erasure(work: Workspace, request: ErasureRequest) -> ErasurePlan:
    """Count what an erasure would take, and say where it stays readable; nothing is written.

    Raises:
        ConfigurationError: no key, one that does not fit the table, or nobody who answers for it.
        MissingTableError: the stream has not begun.
        TargetError: a file with rows that stay is of an older partition spec.
        TableError, UnavailableError: the table is in no state to look at.
    """
    if not request.dry_run:
        Author(request.by, request.reason)
    erased = load_keys(work.stream, request)
    validate_no_key_in_text(request, erased)
    table, history = load_with_history(work.store, work.stream.table.name)
    _require_begun(work, history)
    affected = tuple(find_rows(table, find_wanted(table.schema(), erased)))
    require_current_spec(table, affected, work.stream.stream)
    gone = sort_offsets(collect_offsets(affected))
    letters = find_letters(work.store.find(work.stream.dead_letters_table), erased, gone)
    rows, held = count_rows(affected), _count_letters(letters)
    verb = "would erase" if request.dry_run else "erases"
    return ErasurePlan(
        stream=work.stream.stream,
        table=work.stream.table.name,
        by=request.by,
        reason=request.reason,
        dry_run=request.dry_run,
        rows=rows,
        letters=held,
        text=describe_erasure(work, f"{verb} {rows} rows and {held} dead letters", gone, erased),
    )


def _require_begun(work: Workspace, history: History) -> None:
    if find_recovery_point(history, work.stream.stream) is None:
        raise MissingTableError(
            f"stream {work.stream.stream} has not begun: there is nothing to erase",
            f"`frazil run {work.stream.stream}` begins at source.start",
        )


def erase(work: Workspace, plan: ErasurePlan, request: ErasureRequest) -> Erased:
    """Erase what was planned, on a look of its own; a repetition finds what is left, or nothing.

    Raises:
        ConfigurationError: the plan is a dry run.
        TargetError: a file with rows that stay is of an older partition spec.
        TableError, CommitContentionError, UnavailableError: what landed is told by the ledger;
            run again.
    """
    require_not_dry_run(plan.stream, dry_run=plan.dry_run)
    erased = load_keys(work.stream, request)
    landed = _erase_rows(work, plan, erased)
    reach_failpoint("erase.before-letters")
    letters = remove_listed_letters(work, Author(plan.by, plan.reason))
    reach_failpoint("erase.after-letters")
    rows = sum(int(each.entry.summary[keys.ROWS_DELETED]) for each in landed)
    what = f"erased {rows} rows and {letters} dead letters"
    return Erased(
        stream=plan.stream,
        table=plan.table,
        outcome="ERASED" if landed or letters else "NOTHING",
        rows=rows,
        letters=letters,
        snapshot_ids=tuple(each.entry.snapshot_id for each in landed),
        text=describe_erasure(work, what, {}, erased),
    )


def _erase_rows(
    work: Workspace, plan: ErasurePlan, erased: ErasedKeys
) -> tuple[PublishedBatch, ...]:
    table, history = load_with_history(work.store, plan.table)
    _require_begun(work, history)

    def find_unlisted(seen: History, gone: Coordinates) -> DeadLetterCoordinates:
        found = find_letters(work.store.find(work.stream.dead_letters_table), erased, gone)
        return _drop_listed(found, _list_letters(seen))

    words = {keys.BY: plan.by, keys.REASON: plan.reason}
    deletion = Deletion(keys.ERASE, plan.stream, work.run_id, words)
    return delete_rows(work, find_wanted(table.schema(), erased), deletion, find_unlisted)


def _list_letters(history: History) -> DeadLetterCoordinates:
    """Join the letters that main's ancestry says have left."""
    return join_dead_letters(
        parse_deleted_dead_letters(entry.summary) for entry in walk_ancestors(history)
    )


def _drop_listed(
    found: DeadLetterCoordinates, listed: DeadLetterCoordinates
) -> DeadLetterCoordinates:
    left = {
        attempt: subtract_coordinates(held, listed.get(attempt, {}))
        for attempt, held in found.items()
    }
    return {attempt: held for attempt, held in left.items() if held}


def _count_letters(letters: DeadLetterCoordinates) -> int:
    return sum(count_coordinates(held) for held in letters.values())


def remove_listed_letters(work: Workspace, author: Author) -> int:
    """Take out the letters that the table's ledger lists as gone, and give their count.

    Raises:
        TargetError, CommitContentionError, UnavailableError: run again.
    """
    name = work.stream.dead_letters_table
    _, history = load_with_history(work.store, work.stream.table.name)
    listed = _list_letters(history)
    if not listed or work.store.find(name) is None:
        return 0
    total = 0
    while True:
        tried: list[int] = []
        turn = partial(_try_remove_letters, work, find_listed(listed), author, tried)
        gone = retry_commit(f"erasing from {name}", turn)
        if not gone:
            return total
        total += gone


def _try_remove_letters(
    work: Workspace, wanted: RowsToDelete, author: Author, tried: list[int]
) -> int:
    """Take one turn; where nothing is left, an earlier one with no answer landed, if any."""
    table = work.store.load(work.stream.dead_letters_table)
    affected = tuple(find_rows(table, wanted))
    if not affected:
        return tried[-1] if tried else 0
    rows = count_rows(affected)
    tried.append(rows)
    summary = {
        keys.KIND: keys.ERASE,
        keys.STREAM: work.stream.stream,
        keys.ROWS_DELETED: str(rows),
        keys.BY: author.by,
        keys.REASON: author.reason,
        keys.RUN_ID: work.run_id,
    }
    head = table.current_snapshot()
    added = build_deletion(table, affected, summary, RetainedRows(work.stream.stream))
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, added.snapshot.snapshot_id),
    ]
    commit_once(work.store, table, {commits.MAIN: head.snapshot_id if head else None}, updates)
    return rows


def find_listed(listed: DeadLetterCoordinates) -> RowsToDelete:
    """Say which rows of the letters' table are these letters."""

    def flag(rows: pa.Table) -> Flags:
        flags = np.zeros(len(rows), dtype=np.bool_)
        attempts = rows["attempt"].to_numpy()
        kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
        numbers = np.asarray(kafka.field("partition"))
        topics = kafka.field("topic").to_numpy(zero_copy_only=False)
        offsets = kafka.field("offset").to_numpy()
        for attempt, held in listed.items():
            for (topic, number), gone in held.items():
                own = (attempts == attempt) & (topics == topic) & (numbers == number)
                flags |= own & np.isin(offsets, gone)
        return flags

    return RowsToDelete(In(term="attempt", literals=set(listed)), ("attempt",), flag)


def describe_erasure(work: Workspace, what: str, gone: Coordinates, erased: ErasedKeys) -> str:
    """Write what is taken, and every place from where it can still be read or come back."""
    told = [*_list_remains(work), *_list_kafka(work, gone), *_list_blind(erased)]
    others = sorted(set(list_siblings(work.stream)) - {work.stream.stream})
    if others:
        told.append(f"other streams of the route may hold the key too: {', '.join(others)}")
    return "\n".join([what, *told])


def _list_remains(work: Workspace) -> Iterator[str]:
    window = retention_window(work)
    hours = max(window.expire_ms, window.rollback_ms) // HOUR_MS
    for name in (work.stream.table.name, work.stream.dead_letters_table):
        table = work.store.find(name)
        if table is None:
            continue
        refs = table.metadata.refs.items()
        tags = [ref for ref, each in refs if each.snapshot_ref_type == SnapshotRefType.TAG]
        staged = [ref for ref, _ in refs if ref.startswith(PREFIX) and ref not in tags]
        held = f", and the tags {', '.join(tags)} theirs until they age" if tags else ""
        yield (
            f"{name}: {len(table.metadata.snapshots)} snapshots that are there already keep what "
            f"they hold until expire_snapshots removes them, {hours} hours from now at the "
            f"earliest{held}"
        )
        if staged:
            yield (
                f"{name}: what {len(staged)} staging branches hold is not published yet and stays: "
                "erase once more when they are done"
            )


def _list_kafka(work: Workspace, gone: Coordinates) -> Iterator[str]:
    """Say what Kafka still has; an erasure does not wait for a broker."""
    yield (
        "a replay leaves out what was erased; records that come later or by a backfill, and a "
        "rollback to before the erasure, bring the key back: erase once more then"
    )
    if not gone:
        return
    kept = 0
    try:
        for topic in {topic for topic, _ in gone}:
            facts = work.kafka.fetch_topic(topic, "read_uncommitted")
            for number, partition in enumerate(facts.partitions):
                offsets = gone.get((topic, number))
                kept += int(np.sum(offsets >= partition.earliest)) if offsets is not None else 0
    except FrazilError:
        yield "Kafka did not answer; it keeps records until its own retention takes them"
        return
    yield f"Kafka still has {kept} of these records until its own retention takes them"


def _list_blind(erased: ErasedKeys) -> Iterator[str]:
    if not erased.raw:
        yield (
            "dead letters were found by the records above alone, not by what is in their values; "
            f"--key {RAW_KEY}=VALUE finds them by the record's own key"
        )


def list_siblings(stream: Stream) -> list[str]:
    """Name all streams of a stream's route, itself among them; none where there is no route."""
    route = stream.route
    if route is None:
        return []
    own = stream.stream
    rest = own if route.takes is None else own.removesuffix(derived_name("", route.takes))
    return [rest, *(derived_name(rest, value) for value in route.tables)]
