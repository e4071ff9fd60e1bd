"""ERASE in a state table and its delete memory: every version of a row that a data file holds.

Merges leave replaced rows in data files and hide them, so files are searched without their delete
files. The snapshot that removes rows names the erasures of the change table that it has followed:
the next merge then need not fold all changes again.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count

from frazil.errors import ConfigurationError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.row_changes import RowSearch, RowsToDelete, count_rows, find_rows
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ledger import keys
from frazil.ledger.authors import Author
from frazil.ledger.deletions import Deletion
from frazil.ledger.recovery_point import find_batch
from frazil.maintenance.erasure_keys import LEFT_SIDE, RAW_KEY, ErasedKeys, select_rows_by_key
from frazil.maintenance.row_deletion import build_deletion, remove_rows
from frazil.messages import count_noun, name_field
from frazil.state_tables.merge_rules import find_position
from frazil.state_tables.tables import require_own_state, require_state
from frazil.streams.models import Stream
from frazil.workspace import Workspace


def require_whole_keys(stream: Stream, erased: ErasedKeys) -> ErasedKeys:
    """Return the keys by which rows are selected: with a state table those of its key columns.

    Any other condition would leave changes of a key behind, of which a merge makes a row again.
    Several columns are one key together.

    Raises:
        ConfigurationError: there is no key column, another column, or several values for two.
    """
    if stream.table.state is None:
        return erased
    ids = stream.table.id_columns
    by_id = erased.restrict(ids).by_column
    named = {*erased.by_column, *(erased.whole[0] if erased.whole else ())}
    others = sorted(named - {*ids, RAW_KEY})
    if others or not (by_id or erased.whole):
        # Any other name may be a value, where both sides of a key were confused.
        shown = [name for name in others if name in {each.name for each in stream.parsed_columns}]
        found = ", ".join(shown) or (LEFT_SIDE if others else RAW_KEY)
        raise ConfigurationError(
            f"stream {stream.stream} has a state table: erase by its key columns, "
            f"{', '.join(ids)}; {found} is not one of them",
            f"give {name_field('keys', 'key')} for {', '.join(ids)}; {RAW_KEY}=VALUE additionally "
            "selects dead letters",
        )
    several = [column for column in ids if len({*by_id.get(column, ())}) > 1]
    if len(several) > 1:
        raise ConfigurationError(
            f"several values are given for each of {', '.join(several)}: which of them form one "
            "key is not known",
            "erase one key at a time, several that differ in one column, or list whole keys in a "
            f"CSV file for {name_field('keys_file')}, whose first line is {','.join(ids)}",
        )
    return replace(erased, by_column=by_id, in_all=True)


def count_state_rows(views: Iterable[TableView], erased: ErasedKeys) -> str:
    """Describe how many rows, replaced ones included, and recorded deletes have the keys."""
    found = []
    for view in views:
        if view.found is not None:
            rows = count_rows(find_rows(view.table, select_rows_by_key(view.table, erased)))
            found.append(f"{view.name}: {count_noun(rows, 'row')} in data files")
    return "; ".join(found)


def erase_state(
    work: Workspace, erased: ErasedKeys, author: Author, followed: Iterable[int]
) -> tuple[int, tuple[TableView, ...]]:
    """Erase the keys from state table and delete memory.

    Returns:
        The number of rows removed, and both tables afterwards.

    `followed` are the snapshots of the change table that erased the changes. The memory is
    searched again at the end: a merge that ran meanwhile may have remembered a delete.

    Raises:
        TargetError: a file with the key is not a Parquet file.
        CommitContentionError, UnavailableError: run again.
    """
    state = require_state(work.stream)
    view, memory = TableView(work.store, state.name), TableView(work.store, state.deletes_name)
    remembered, memory = _erase_deletes(work, memory, erased, author)
    if view.found is None:
        return remembered, (view, memory)
    require_own_state(work.stream, view.table)
    words = {keys.BY: author.by, keys.REASON: author.reason}
    deletion = Deletion(keys.ERASE, work.stream.stream, work.run_id, words)
    rows = delete_state_rows(view, select_rows_by_key(view.table, erased), deletion, followed)
    reach_failpoint("erase.after-state")
    again, memory = _erase_deletes(work, memory.reload(), erased, author)
    return remembered + rows + again, (view.reload(), memory)


def _accept(_state: TableView) -> None:
    """Accept the state as it is."""


def delete_state_rows(
    view: TableView,
    rows: RowsToDelete,
    deletion: Deletion,
    followed: Iterable[int],
    require: Callable[[TableView], None] = _accept,
) -> int:
    """Delete rows of the state; its snapshot names the deletions of changes that it followed.

    A run that is repeated later, such as a cleared task, deletes what came in between, too.
    `require` raises where the state that the commit is based on must not follow them.

    Returns:
        The number of rows, those of earlier attempts of the same run included.

    Raises:
        TargetError, CommitContentionError, UnavailableError: run again.
    """
    search, known, total = RowSearch(rows), frozenset(followed), 0
    for number in count(deletion.portion):
        portion = replace(deletion, portion=number)
        attempt = partial(_try_erase, iterate_views(view), search, portion, known, require)
        deleted = retry_commit(f"{deletion.kind} of {view.name}", attempt)
        if deleted is None:
            break
        total += deleted
        view = view.reload()
    return total


def _erase_deletes(
    work: Workspace, memory: TableView, erased: ErasedKeys, author: Author
) -> tuple[int, TableView]:
    if memory.found is None:
        return 0, memory
    return remove_rows(work, memory, select_rows_by_key(memory.table, erased), author)


def _try_erase(
    views: Iterator[TableView],
    search: RowSearch,
    deletion: Deletion,
    followed: frozenset[int],
    require: Callable[[TableView], None],
) -> int | None:
    """Try one commit, unless an earlier attempt landed; None if nothing is left to do.

    Returns:
        The number of rows that this portion removed.
    """
    view = next(views)
    history, table = view.history, view.table
    batch_id = deletion.name(history.table_uuid)
    landed = find_batch(history, batch_id)
    if landed is not None:
        return int(landed.summary[keys.ROWS_DELETED])
    affected = tuple(search.find(table))
    position = find_position(history, deletion.stream)
    if not affected and (position is None or followed <= {*position.erased}):
        return None
    require(view)
    rows = count_rows(affected)
    summary = {
        **deletion.words,
        keys.KIND: deletion.kind,
        keys.STREAM: deletion.stream,
        keys.BATCH_ID: batch_id,
        keys.ROWS_DELETED: str(rows),
        keys.RUN_ID: deletion.run_id,
    }
    if position is not None:
        moved = position.model_copy(update={"erased": tuple(sorted({*position.erased, *followed}))})
        summary[keys.merge_key(deletion.stream)] = moved.encode()
    added = build_deletion(table, affected, summary, search)
    reach_failpoint("state.before-commit")
    commit_once(view.store, table, {commits.MAIN: history.head}, commits.move_main(added))
    reach_failpoint("state.after-commit")
    return rows
