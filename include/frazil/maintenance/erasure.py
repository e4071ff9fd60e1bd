"""ERASE: delete all rows and dead letters of given keys, approved by a named person.

The table's snapshot is committed first and lists the rows and dead letters; the dead letters are
then deleted by that list, so that the next erasure of any key finishes a run that was killed in
between (decision record 16).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, In
from pyiceberg.table import FileScanTask, Table

from frazil.errors import ConfigurationError, FrazilError
from frazil.failpoints import reach_failpoint
from frazil.iceberg.branches import parse_branch
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commits import MAIN
from frazil.iceberg.data_files import read_column, read_files
from frazil.iceberg.live_files import FilePlanner, Flags, LiveFile, flag_hidden_rows
from frazil.iceberg.row_changes import (
    RowsToDelete,
    collect_offsets,
    count_rows,
    find_rows,
    sort_offsets,
)
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import group_dead_letters, list_slices
from frazil.ledger import keys
from frazil.ledger.authors import Author, require_not_dry_run
from frazil.ledger.coordinates import (
    NO_OFFSETS,
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
    require_recovery_point,
    walk_ancestors,
)
from frazil.ledger.repeated_values import repeats_any
from frazil.maintenance.erasure_keys import (
    RAW_KEY,
    ErasedKeys,
    load_keys,
    read_versions,
    select_rows_by_key,
)
from frazil.maintenance.messages import Erased, ErasurePlan, ErasureRequest
from frazil.maintenance.remaining_keys import describe_equality_deletes, describe_other_keys
from frazil.maintenance.row_deletion import delete_rows, forget_removed_files, remove_rows
from frazil.maintenance.state_erasure import count_state_rows, erase_state, require_whole_keys
from frazil.messages import count_noun, name_field
from frazil.schemas.inferred_columns import with_event_key
from frazil.schemas.merge import find_earlier_columns
from frazil.streams.column_types import quote_name
from frazil.streams.models import Stream
from frazil.streams.routes import derived_name
from frazil.streams.timestamps import HOUR_MS, from_epoch_ms
from frazil.workspace import Workspace, retention_window


@dataclass
class DeadLetterSearch:
    """A search for dead letters, repeated at each attempt of a commit.

    Their coordinates and keys are kept by file: a further attempt reads only files added since.
    """

    erased: ErasedKeys
    _planner: FilePlanner = field(default_factory=lambda: FilePlanner(AlwaysTrue()))
    _read: dict[tuple[str, ...], pa.Table] = field(default_factory=dict)

    def find(self, table: Table | None, deleted: Coordinates) -> DeadLetterCoordinates:
        """Find dead letters with one of the raw keys, and those of the deleted rows' records.

        Raises:
            StorageError, CatalogUnavailableError: a file cannot be read.
        """
        if table is None:
            return {}
        with translated_errors(f"searching dead letters in {'.'.join(table.name())}"):
            files = self._planner.plan(table)
            read = {
                file.name: self._read.get(file.name) or _read_dead_letters(table, file)
                for file in files
            }
        self._read = read
        if not read:
            return {}
        rows = pa.concat_tables(read.values())
        raw = pa.array(sorted(self.erased.raw), rows["key"].type)
        is_erased = pc.is_in(rows["key"], value_set=raw, skip_nulls=True)
        order = [(name, "ascending") for name in ("topic", "partition", "offset", "attempt")]
        rows = rows.append_column("is_erased", is_erased).sort_by(order).combine_chunks()
        flags = rows["is_erased"].to_numpy().copy()
        for partition, low, high in list_slices(rows):
            offsets = rows["offset"].to_numpy()[low:high]
            flags[low:high] |= np.isin(offsets, deleted.get(partition, NO_OFFSETS))
        return group_dead_letters(rows.filter(pa.array(flags)))


def _read_dead_letters(table: Table, file: LiveFile) -> pa.Table:
    """Read the coordinates, keys and attempts of a file's dead letters that are not hidden."""
    names = ("topic", "partition", "offset", "key")
    schema = table.schema().select(*(f"{keys.KAFKA_COLUMN}.{name}" for name in names), "attempt")
    found = read_files(table, schema, [FileScanTask(file.file)])
    found = found.filter(pa.array(~flag_hidden_rows(table, file, len(found))))
    columns = {name: read_column(found, f"{keys.KAFKA_COLUMN}.{name}") for name in names}
    return pa.table({**columns, "attempt": found["attempt"]})


def plan_erasure(work: Workspace, request: ErasureRequest) -> ErasurePlan:
    """Count what an erasure would delete and describe where it stays readable; nothing is written.

    Raises:
        ConfigurationError: no key, a key that does not fit the table, or no author.
        MissingTableError: the stream has not begun.
        TargetError: a file that may hold the key is not a Parquet file.
        TableError, UnavailableError: the table cannot be read.
    """
    if not request.dry_run:
        Author(request.by, request.reason)
    work = with_event_key(work)
    erased = load_keys(work.stream, request)
    validate_no_key_in_text(request, erased)
    views = [TableView(work.store, name) for name in list_erased_tables(work)]
    view, letters, *of_state = views
    require_recovery_point(view.history, work.stream.stream)
    by_row = require_whole_keys(work.stream, erased)
    affected = tuple(find_rows(view.table, select_rows_by_key(view.table, by_row)))
    deleted = sort_offsets(collect_offsets(affected))
    found = DeadLetterSearch(erased).find(letters.found, deleted)
    rows, dead_letters = count_rows(affected), _count_dead_letters(found)
    summary = f"{'would erase' if request.dry_run else 'erases'} {_describe(rows, dead_letters)}"
    in_state = count_state_rows(of_state, by_row)
    summary += f"; {in_state}" if in_state else ""
    return ErasurePlan(
        stream=work.stream.stream,
        table=work.stream.table.name,
        by=request.by,
        reason=request.reason,
        dry_run=request.dry_run,
        rows=rows,
        dead_letters=dead_letters,
        text=describe_erasure(work, summary, deleted, erased, views),
    )


def erase(work: Workspace, plan: ErasurePlan, request: ErasureRequest) -> Erased:
    """Erase the keys of the request in the table as it is now; a repetition erases what is left.

    Raises:
        ConfigurationError: the plan is a dry run.
        TargetError: a file with the key is not a Parquet file.
        TableError, CommitContentionError, UnavailableError: run again; what landed is in the
            ledger.
    """
    require_not_dry_run(plan.stream, dry_run=plan.dry_run)
    work = with_event_key(work)
    erased = load_keys(work.stream, request)
    author = Author(plan.by, plan.reason)
    landed, view = _erase_rows(work, plan, erased)
    reach_failpoint("erase.before-letters")
    dead_letters, letters = remove_erased_dead_letters(work, view, author)
    reach_failpoint("erase.after-letters")
    removed = 0
    of_state: tuple[TableView, ...] = ()
    if work.stream.table.state is not None:
        by_row = require_whole_keys(work.stream, erased)
        followed = [each.entry.snapshot_id for each in landed]
        removed, of_state = erase_state(work, by_row, author, followed)
    views = [forget_removed_files(work, each) for each in (view, letters, *of_state)]
    rows = sum(int(each.entry.summary[keys.ROWS_DELETED]) for each in landed)
    summary = f"erased {_describe(rows, dead_letters)}"
    if work.stream.table.state is not None:
        summary += f"; {count_noun(removed, 'row')} of state table and delete memory"
    return Erased(
        stream=plan.stream,
        table=plan.table,
        outcome="ERASED" if landed or dead_letters or removed else "NOTHING",
        rows=rows,
        dead_letters=dead_letters,
        snapshot_ids=tuple(each.entry.snapshot_id for each in landed),
        text=describe_erasure(work, summary, {}, erased, views),
    )


def _erase_rows(
    work: Workspace, plan: ErasurePlan, erased: ErasedKeys
) -> tuple[tuple[PublishedBatch, ...], TableView]:
    view = TableView(work.store, plan.table)
    require_recovery_point(view.history, work.stream.stream)
    search = DeadLetterSearch(erased)

    def find_unlisted(seen: History, deleted: Coordinates) -> DeadLetterCoordinates:
        found = search.find(work.store.find(work.stream.dead_letters_table), deleted)
        return _drop_listed(found, list_erased_dead_letters(seen))

    author = {keys.BY: plan.by, keys.REASON: plan.reason}
    deletion = Deletion(keys.ERASE, plan.stream, work.run_id, author)
    by_row = require_whole_keys(work.stream, erased)
    return delete_rows(view, select_rows_by_key(view.table, by_row), deletion, find_unlisted)


def list_erased_dead_letters(history: History) -> DeadLetterCoordinates:
    """Return the dead letters that snapshots on main's ancestry list as erased."""
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


def _count_dead_letters(dead_letters: DeadLetterCoordinates) -> int:
    return sum(count_coordinates(held) for held in dead_letters.values())


def remove_erased_dead_letters(
    work: Workspace, view: TableView, author: Author
) -> tuple[int, TableView]:
    """Delete the dead letters that the table's ledger lists as erased.

    Returns:
        Their number, and the dead-letter table afterwards.

    Raises:
        TargetError, CommitContentionError, UnavailableError: run again.
    """
    letters = TableView(work.store, work.stream.dead_letters_table)
    listed = list_erased_dead_letters(view.history)
    if not listed or letters.found is None:
        return 0, letters
    return remove_rows(work, letters, select_dead_letters(listed), author)


def select_dead_letters(listed: DeadLetterCoordinates) -> RowsToDelete:
    """Select these dead letters in their table."""

    def flag(rows: pa.Table) -> Flags:
        flags = np.zeros(len(rows), dtype=np.bool_)
        attempts = rows["attempt"].to_numpy()
        kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
        numbers = np.asarray(kafka.field("partition"))
        topics = kafka.field("topic").to_numpy(zero_copy_only=False)
        offsets = kafka.field("offset").to_numpy()
        for attempt, held in listed.items():
            for (topic, number), erased in held.items():
                own = (attempts == attempt) & (topics == topic) & (numbers == number)
                flags |= own & np.isin(offsets, erased)
        return flags

    return RowsToDelete(
        In(term="attempt", literals=set(listed)), ("attempt",), flag, even_hidden=True
    )


def _describe(rows: int, dead_letters: int) -> str:
    return f"{count_noun(rows, 'row')} and {count_noun(dead_letters, 'dead letter')}"


def describe_erasure(
    work: Workspace,
    summary: str,
    deleted: Coordinates,
    erased: ErasedKeys,
    views: Iterable[TableView],
) -> str:
    """Describe what is erased, and where it can still be read or come back from, line by line.

    `views` are the tables that an erasure changes.
    """
    views = tuple(views)
    tables = [view.table for view in views if view.found is not None]
    lines = [
        *_list_copies(work, erased, views),
        *describe_other_keys(tables, work.stream, require_whole_keys(work.stream, erased), erased),
        *_list_kafka(work, deleted),
        *_list_unsearched(erased),
    ]
    others = sorted(set(list_route_streams(work.stream)) - {work.stream.stream})
    if others:
        lines.append(f"other streams of the route may hold the key too: {', '.join(others)}")
    return "\n".join([summary, *lines])


def list_erased_tables(work: Workspace) -> tuple[str, ...]:
    """Return the names of all tables that an erasure of the stream's records changes."""
    state = work.stream.table.state
    of_state = (state.name, state.deletes_name) if state else ()
    return (work.stream.table.name, work.stream.dead_letters_table, *of_state)


def _list_copies(work: Workspace, erased: ErasedKeys, views: Iterable[TableView]) -> Iterator[str]:
    """List what still holds a key, or may: snapshots, refs, other columns, equality deletes."""
    window, by_row = retention_window(work), require_whole_keys(work.stream, erased)
    hours = max(window.expire_ms, window.rollback_ms) // HOUR_MS
    for view in views:
        name, table = view.name, view.found
        if table is None:
            continue
        staged = [ref for ref in table.metadata.refs if parse_branch(ref, 0) is not None]
        others = [ref for ref in table.metadata.refs if ref not in {MAIN, *staged}]
        snapshots = count_noun(len(table.metadata.snapshots), "existing snapshot")
        yield (
            f"{name}: {snapshots} may still hold erased records, in rows or in the bounds and "
            f"partitions of files, until expire_snapshots removes them, in {hours} h at the "
            f"earliest{'; these refs keep theirs longer:' if others else ''}"
        )
        yield from (_describe_ref(table, ref) for ref in sorted(others))
        yield from _list_earlier_columns(table, by_row)
        yield from describe_equality_deletes(table, by_row, erased, work.stream.stream)
        if staged:
            branches = count_noun(len(staged), "staging branch", "staging branches")
            yield (
                f"{name}: {branches} not published yet and not erased: erase again once their "
                "batches are published"
            )


def _describe_ref(table: Table, name: str) -> str:
    """Describe how long a tag, or a branch that is not for staging, keeps its snapshots."""
    ref, full_name = table.metadata.refs[name], ".".join(table.name())
    kind, age_ms = str(ref.snapshot_ref_type.value), ref.max_ref_age_ms
    what = f"{full_name}: {kind} {name} is not erased, and keeps its snapshots"
    head = table.snapshot_by_id(ref.snapshot_id)
    if age_ms is not None and head is not None:
        until = from_epoch_ms(head.timestamp_ms + age_ms)
        return f"{what} until its maximum age, {until:%Y-%m-%d %H:%M} UTC"
    quoted = name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else quote_name(name)
    return (
        f"{what} for good, without a maximum age: its owner must drop it: "
        f"ALTER TABLE {full_name} DROP {kind.upper()} {quoted}"
    )


def _list_earlier_columns(table: Table, erased: ErasedKeys) -> Iterator[str]:
    """List the columns that a change of a key's type set aside, and whether they are searched."""
    name, schema = ".".join(table.name()), table.schema()
    texts = {column: [*values] for column, values in erased.by_column.items()}
    for column in erased.whole[0] if erased.whole else ():
        texts.setdefault(column, []).extend(key[column] for key in erased.whole)
    for column in texts.keys() & {*schema.column_names}:
        aside = f"set aside when the type of {column} changed"
        for each, values in dict(read_versions(table, column, texts[column])).items():
            typed, missed = f"{each} ({schema.find_type(each)})", values.count(None)
            if each != column and missed < len(values):
                yield f"{name}: {typed}, {aside}, is searched too"
            if missed:
                yield (
                    f"{name}: {missed:,} of {len(values):,} keys cannot be a value of {typed}, "
                    f"{aside}; if rows hold it there, erase them by another column"
                )
        for each in find_earlier_columns(table.schemas(), schema, column).unproven:
            advice = _describe_other_key(erased, column, each)
            yield (
                f"{name}: {each} may have been {aside}, and is not searched, since the metadata "
                f"has lost the schema that proves it: to erase by it, {advice}"
            )


def _describe_other_key(erased: ErasedKeys, column: str, other: str) -> str:
    """Describe how to give the same keys by another column; a part of a key selects nothing."""
    names = [*erased.whole[0]] if erased.whole else []
    if column not in names:
        return f"set {name_field('keys', 'key')} to {other}=VALUE"
    line = ",".join(other if name == column else name for name in names)
    return f"set {name_field('keys_file')} to a CSV file whose first line is {line}"


def _list_kafka(work: Workspace, deleted: Coordinates) -> Iterator[str]:
    """Describe what Kafka still has; an erasure goes on if no broker answers."""
    yield (
        "a replay leaves erased records out; new records, a backfill, or a rollback to before the "
        "erasure can bring the key back: erase again then"
    )
    if not deleted:
        return
    kept = 0
    try:
        for topic in {topic for topic, _ in deleted}:
            facts = work.kafka.fetch_topic(topic, "read_uncommitted")
            for number, partition in enumerate(facts.partitions):
                offsets = deleted.get((topic, number))
                kept += int(np.sum(offsets >= partition.earliest)) if offsets is not None else 0
    except FrazilError:
        yield "Kafka did not answer; it keeps these records until its retention deletes them"
        return
    yield f"Kafka still has {kept:,} of these records until its retention deletes them"


def _list_unsearched(erased: ErasedKeys) -> Iterator[str]:
    if not erased.raw:
        yield (
            "only dead letters of the rows above were found: values of dead letters are not "
            f"searched; set {name_field('keys', 'key')} to {RAW_KEY}=VALUE to find them by the "
            "record's key"
        )


def list_route_streams(stream: Stream) -> list[str]:
    """Return all streams of a stream's route, including itself; none if it has no route."""
    route = stream.route
    if route is None:
        return []
    own = stream.stream
    base = own if route.takes is None else own.removesuffix(derived_name("", route.takes))
    return [base, *(derived_name(base, value) for value in route.tables)]


def validate_no_key_in_text(request: ErasureRequest, erased: ErasedKeys) -> None:
    """Refuse a name or reason that contains a key: both stay in the table's history.

    Raises:
        ConfigurationError: a key value occurs in the name or the reason.
    """
    values = [value for values in erased.by_column.values() for value in values]
    values += {value for key in erased.whole for value in key.values()}
    if repeats_any(f"{request.by} {request.reason}", values):
        raise ConfigurationError(
            f"erase of stream {request.stream}: the name or the reason contains a key, and "
            "both are kept in the table",
            "name the request by its number instead",
        )
