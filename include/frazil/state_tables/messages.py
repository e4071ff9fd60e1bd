"""The JSON of merges: the job's request and result, the merge position, the report."""

from typing import Literal

from frazil.ledger.offsets import Runs
from frazil.messages import Message, MessagePart, Report, count_noun


class MergeCounts(MessagePart):
    """What became of the changes that a merge read.

    `absent` deletes met no row. `superseded` changes lost against another change of the merge,
    `stale` ones against the state or a remembered delete. `removed` rows had no change at all: a
    rebuild took them away. `unfilled` rows lack a value that no change event carried.
    """

    changes: int
    inserted: int
    updated: int
    deleted: int
    absent: int
    superseded: int
    stale: int
    removed: int = 0
    unfilled: int = 0

    @property
    def is_balanced(self) -> bool:
        """Return whether every change is counted once."""
        applied = self.inserted + self.updated + self.deleted + self.absent
        return self.changes == applied + self.superseded + self.stale

    @property
    def text(self) -> str:
        """Return the counts on one line."""
        names = [name for name in type(self).model_fields if name != "changes"]
        found = [f"{count:,} {name}" for name in names if (count := getattr(self, name))]
        return f"{count_noun(self.changes, 'change')}: {', '.join(found) or 'none applied'}"


class MergePosition(Message):
    """Up to which snapshot of the change table a state snapshot has folded, and by which rules.

    Only remembered deletes with this `memory` id are used; a rebuild starts a new id.
    `erased` are later snapshots of the change table whose erasures the state has followed already.
    `waiting` are positions in the source's log of deletes that are not there yet: rows that got
    another key lack values of the rows that had the key before.
    """

    snapshot_id: int
    table_uuid: str
    rules: str
    id_columns: tuple[str, ...]
    memory: str
    counts: MergeCounts
    rebuilt: str = ""
    erased: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()


class MergeRequest(Message):
    """The request of the Spark job `merge_changes`.

    `added` are the offsets whose changes are folded; without it all changes are, and they replace
    the state. `sequence` are SQL paths, `operation` is the column that says what happened. With
    `has_events` the changes are change events, which may lack values.
    """

    catalog: str
    changes: str
    change_snapshot: int
    state: str
    branch: str
    deletes: str
    memory: str
    added: Runs | None
    columns: tuple[str, ...]
    id_columns: tuple[str, ...]
    sequence: tuple[str, ...]
    operation: str | None
    marks: bool
    has_events: bool = False
    waiting: tuple[int, ...] = ()
    session_conf: dict[str, str] = {}


class MergeResult(Message):
    """The outcome of the Spark job `merge_changes`; nothing was written if it found a `fault`.

    With the fault `late` the same merge has to fold all changes.
    """

    counts: MergeCounts
    fault: Literal["", "operation", "partition", "late"] = ""
    faulty: int = 0
    example: str = ""
    waiting: tuple[int, ...] = ()


class Merged(Report):
    """The outcome of a merge."""

    stream: str
    table: str
    outcome: Literal["MERGED", "NOTHING"]
    snapshot_id: int | None = None
    change_snapshot: int | None = None
    counts: MergeCounts | None = None
    rebuilt: str = ""

    @property
    def text(self) -> str:
        """Return the outcome on one line."""
        if self.counts is None:
            return f"{self.table}: nothing to merge"
        why = f"; rebuilt from all changes: {self.rebuilt}" if self.rebuilt else ""
        return f"{self.table}: snapshot {self.snapshot_id}: {self.counts.text}{why}"
