"""The delete memory of a state table: recorded deletes leave it once no merge needs them."""

from collections import Counter
from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pyiceberg.expressions import In

from frazil.iceberg.branches import parse_branch
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.data_files import read_column, read_row_coordinates
from frazil.iceberg.live_files import Flags
from frazil.iceberg.row_changes import RowsToDelete
from frazil.iceberg.table_view import TableView
from frazil.ledger import keys
from frazil.ledger.authors import Author
from frazil.ledger.coordinates import Partition, subtract_coordinates
from frazil.maintenance.row_deletion import remove_rows, select_rows_at
from frazil.state_tables.messages import MergePosition
from frazil.state_tables.tables import require_state
from frazil.state_tables.trim_rules import PLACE, flag_below, list_places
from frazil.streams.state_sections import MEMORY
from frazil.workspace import Workspace


def forget_deletes(work: Workspace, below: Mapping[Partition, int], reason: str) -> int:
    """Remove recorded deletes below these offsets whose changes are gone; return their number.

    `reason` is the rule by which the changes went.

    Raises:
        TargetError, CommitContentionError, UnavailableError: run again.
    """
    stream = work.stream
    memory = TableView(work.store, require_state(stream).deletes_name)
    if memory.found is None or not below:
        return 0
    with translated_errors(f"reading {memory.name}"):
        places = (f"{keys.KAFKA_COLUMN}.{each}" for each in PLACE)
        recorded = memory.table.scan(selected_fields=tuple(places)).to_arrow()
    old = list_places(recorded.filter(pa.array(flag_below(recorded, below))))
    # Read after the recorded deletes: a merge may record one, but not before its change is there.
    kept = read_row_coordinates(work.store.load(stream.table.name))
    gone = subtract_coordinates(old, kept)
    author = Author(stream.owner, reason)
    return remove_rows(work, memory, select_rows_at(gone), author)[0] if gone else 0


def forget_memories(
    work: Workspace, *, expired: Collection[int] = (), dry_run: bool = False
) -> int:
    """Remove the recorded deletes of memories that no snapshot of the state names; return how many.

    Each rebuild records all deletes in a memory of its own. A merge records deletes before its
    snapshot names their memory, so nothing is removed while one may be running. A dry run counts,
    without the snapshots of the state that are `expired` by their ids.

    Raises:
        TargetError, CommitContentionError, UnavailableError: run again.
    """
    stream = work.stream
    state = require_state(stream)
    memory = TableView(work.store, state.deletes_name)
    if memory.found is None:
        return 0
    recorded: Counter[str] = Counter()
    with translated_errors(f"reading {memory.name}"):
        for batch in memory.table.scan(selected_fields=(MEMORY,)).to_arrow_batch_reader():
            names, numbers = pc.value_counts(batch[MEMORY]).flatten()
            recorded.update(dict(zip(names.to_pylist(), numbers.to_pylist(), strict=True)))
    # Read after the recorded deletes: a merge that begins later has a memory that is not there yet.
    needed = _list_needed(TableView(work.store, state.name), keys.merge_key(stream.stream), expired)
    old = set() if needed is None else recorded.keys() - needed
    if dry_run or not old:
        return sum(recorded[name] for name in old)
    author = Author(stream.owner, "a rebuild of the state has recorded its deletes again")
    return remove_rows(work, memory, _select_memories(old), author)[0]


def _list_needed(state: TableView, key: str, expired: Collection[int]) -> set[str] | None:
    """List the memories that the state's snapshots name; None if there may be others."""
    if state.found is None:
        return None
    is_merging = any(parse_branch(name, 0) for name in state.table.metadata.refs)
    entries = state.history.entries.items()
    texts = [entry.summary.get(key) for number, entry in entries if number not in expired]
    try:
        found = [MergePosition.model_validate_json(t, extra="forbid") for t in texts if t]
    except ValidationError:  # a newer release wrote it
        return None
    return None if is_merging or not found else {each.memory for each in found}


def _select_memories(memories: set[str]) -> RowsToDelete:
    """Select the recorded deletes of these memories."""

    def flag(rows: pa.Table) -> Flags:
        names = read_column(rows, MEMORY)
        flags: Flags = pc.is_in(names, value_set=pa.array(memories, names.type)).to_numpy()
        return flags

    return RowsToDelete(In(term=MEMORY, literals=memories), (MEMORY,), flag)
