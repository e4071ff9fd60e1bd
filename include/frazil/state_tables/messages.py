"""The JSON of merges: the job's request and result, the merge position, the report."""

from typing import Literal

from pydantic import Field

from frazil.ledger.offsets import Runs
from frazil.messages import Message, MessagePart, Report, count_noun
from frazil.streams.change_events import LSN


class MergeCounts(MessagePart):
    """What became of the changes that a merge read.

    `absent` deletes met no row. `superseded` changes lost against another change of the merge,
    `stale` ones against the state or a recorded delete. `removed` rows had no change at all: a
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

    def __add__(self, other: "MergeCounts") -> "MergeCounts":
        """Return the counts of both merges together."""
        mine, theirs = self.model_dump(), other.model_dump()
        return MergeCounts.model_validate({name: mine[name] + theirs[name] for name in mine})

    @property
    def is_balanced(self) -> bool:
        """Return whether every change is counted once."""
        applied = self.inserted + self.updated + self.deleted + self.absent
        return self.changes == applied + self.superseded + self.stale

    def count_written(self, *, marks: bool) -> int:
        """Return the rows that a merge writes; with `marks` deleted keys keep one."""
        return self.inserted + self.updated + (self.deleted + self.absent if marks else 0)

    @property
    def text(self) -> str:
        """Return the counts on one line."""
        names = [name for name in type(self).model_fields if name != "changes"]
        found = [f"{count:,} {name}" for name in names if (count := getattr(self, name))]
        return f"{count_noun(self.changes, 'change')}: {', '.join(found) or 'none applied'}"


class MergePosition(Message):
    """Up to which snapshot of the change table a state snapshot has folded, and by which rules.

    Only recorded deletes with this `memory` id are used; a rebuild starts a new id.
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
    the state. Changes at the `later` offsets are left to the next merge. `sequence` are SQL paths,
    `operation` is the column that says what happened; with `has_added_operation` null is an upsert,
    since rows may be older than the column. With `has_events` the changes are change events, which
    may lack values; `former_names` → the columns that had them, since an event names what it lacks
    as the column was called then; the name of a replaced column means both.
    """

    catalog: str
    changes: str
    change_snapshot: int
    state: str
    branch: str
    deletes: str
    memory: str
    added: Runs | None
    later: Runs = {}
    columns: tuple[str, ...]
    id_columns: tuple[str, ...]
    sequence: tuple[str, ...]
    operation: str | None
    marks: bool
    has_events: bool = False
    has_added_operation: bool = False
    former_names: dict[str, tuple[str, ...]] = {}
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


class MergePreview(Message):
    """What a merge would fold; without `added_offsets` all changes, and `rebuilt` says why."""

    stream: str
    table: str
    dry_run: bool
    has_changes: bool
    added_offsets: int | None = None
    rebuilt: str = ""

    @property
    def ends_run(self) -> bool:
        """Return whether no merge follows: this is a dry run, or there is nothing to merge."""
        return self.dry_run or not self.has_changes

    @property
    def text(self) -> str:
        """Return what would be folded on one line."""
        if not self.has_changes:
            return f"{self.table}: nothing to merge"
        if self.added_offsets is None:
            return f"{self.table}: a merge folds all changes: {self.rebuilt}"
        return (
            f"{self.table}: a merge folds the changes at {count_noun(self.added_offsets, 'offset')}"
        )


class Merged(Report):
    """The outcome of a merge: of each slice, or with the `counts` of all of its `slices`.

    A slice leaves `changes_left` to the next one.
    """

    stream: str
    table: str
    outcome: Literal["MERGED", "NOTHING"]
    snapshot_id: int | None = None
    change_snapshot: int | None = None
    counts: MergeCounts | None = None
    rebuilt: str = ""
    slices: int = 1
    changes_left: int = 0

    @property
    def text(self) -> str:
        """Return the outcome on one line."""
        if self.counts is None:
            return f"{self.table}: nothing to merge"
        why = f"; rebuilt from all changes: {self.rebuilt}" if self.rebuilt else ""
        parts = f"; in {self.slices} slices" if self.slices > 1 else ""
        return f"{self.table}: snapshot {self.snapshot_id}: {self.counts.text}{why}{parts}"


class SourceCheckRequest(Message):
    """A comparison of a state table with its source.

    `table` is the source's, as `schema.name`; by default the rows name it. Keys that differ are
    compared again for `wait_seconds`.
    """

    stream: str
    connection: str
    table: str | None = None
    wait_seconds: int = Field(default=60, ge=0, le=86_400)


class KeyCounts(MessagePart):
    """How many keys are equal, and what the others are.

    `duplicate` rows of the state have the key of another row. Keys `in_motion` changed between two
    passes, those `behind` wait for changes that have not arrived. `unchecked` keys differed in the
    first pass and were too many to compare again.
    """

    equal: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    duplicate: int = 0
    in_motion: int = 0
    behind: int = 0
    unchecked: int = 0

    @property
    def is_wrong(self) -> bool:
        """Return whether the state differs from its source."""
        return any((self.missing, self.extra, self.different, self.duplicate))

    @property
    def text(self) -> str:
        """Return the counts that are not zero on one line."""
        found = [(n.replace("_", " "), getattr(self, n)) for n in type(self).model_fields]
        return ", ".join(f"{count:,} {name}" for name, count in found if count) or "no keys"


class SourceCheck(Report):
    """A state table compared with its source; `columns` counts the differing values of each.

    `lsn` is the source's at the last pass, `position` that which the state had reached, if known.
    `sequence` is that of the stream's order; empty for the order of Kafka.
    `keys` has examples of each kind of finding and is only filled on request.
    """

    stream: str
    table: str
    source: str
    verdict: Literal["equal", "different", "behind"]
    source_rows: int
    state_rows: int
    counts: KeyCounts
    passes: int
    lsn: str
    position: str | None = None
    sequence: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    not_compared: dict[str, str] = {}
    columns: dict[str, int] = {}
    waiting: tuple[str, ...] = ()
    keys: dict[str, tuple[dict[str, str], ...]] = {}

    @property
    def text(self) -> str:
        """Describe the comparison, without values of rows."""
        rows = f"{count_noun(self.source_rows, 'source row')}, {self.state_rows:,} in the state"
        lines = [
            f"{self.table} and {self.source}: {self.verdict}: {rows}; {self.counts.text}",
            f"source read at LSN {self.lsn}, state at {self.position or 'an unknown LSN'}",
            f"compared: {', '.join(self.compared)}",
        ]
        lines += [f"not compared: {name}: {why}" for name, why in self.not_compared.items()]
        if self.columns:
            differing = ", ".join(f"{name} {count:,}" for name, count in self.columns.items())
            lines.append(f"different values: {differing}")
        lines += [f"waiting: {text}" for text in self.waiting]
        for kind, found in self.keys.items():
            shown = ", ".join(" ".join(f"{n}={v}" for n, v in key.items()) for key in found)
            lines.append(f"{kind.replace('_', ' ')}: {shown}")
        return "\n".join(lines)

    @property
    def next_step(self) -> str:
        """Return what to do about a state that is not equal."""
        if self.verdict == "behind":
            return (
                f"`frazil run {self.stream}`, then `frazil merge {self.stream}`, see that the "
                "connector runs, and compare again"
            )
        return (
            f"`frazil audit {self.stream}` shows whether the state is the fold of its changes: if "
            f"not, `frazil merge {self.stream} --rebuild`; if it is, changes were lost before "
            f"Kafka or are dead letters (`frazil dead-letters {self.stream}`): let the connector "
            f"take a {self._needed_snapshot}"
        )

    @property
    def _needed_snapshot(self) -> str:
        """Return which snapshot brings missing and different rows, whatever the state has."""
        if LSN not in self.sequence:
            return "snapshot of the table again"
        return (
            "blocking snapshot of the table; rows of an incremental one have no LSN, so by "
            f"`order: {{sequence_by: {LSN}}}` they are older than any other event of their key"
        )
