"""Requests and results of the Spark jobs of maintenance, erasure messages, and reports."""

from datetime import datetime
from typing import Generic, Literal, TypeAlias, TypeVar

from pydantic import Field, computed_field

from frazil.messages import Message, Report, count_noun

_UNIT = 1000


class TableRequest(Message):
    """A maintenance action on one table, for Spark."""

    catalog: str
    table: str
    action: Literal["compact", "manifests", "expire", "orphans"]
    target_bytes: int = 128 * 1024 * 1024
    partial_progress: bool = False
    rewrite_all: bool = False
    sort_by: tuple[str, ...] = Field(
        (), description="columns of the rewritten files' order; without any the table's own order"
    )
    has_deletes: bool = False
    hidden_share: float | None = Field(
        None, description="rewrite only files of which delete files hide this share of the rows"
    )
    prefix_listing: bool = False
    snapshot_ids: tuple[int, ...] = ()
    older_than_ms: int = 0
    dry_run: bool = True
    session_conf: dict[str, str] = Field(default_factory=dict)


class TableResult(Message):
    """Counts of a maintenance job, and the paths of orphan files."""

    counts: dict[str, int]
    paths: tuple[str, ...] = ()


class ErasureRequest(Message):
    """Keys to erase as `column=value`, listed or in a file, with author and reason.

    It holds personal data: it is read from the form or the command line and never passed on or
    stored. A dry run needs no author.
    """

    stream: str
    keys: tuple[str, ...] = Field((), repr=False)
    keys_file: str | None = None
    by: str = ""
    reason: str = ""
    dry_run: bool = True


class ErasurePlan(Message):
    """Counts of what an erasure would delete, without its keys."""

    stream: str
    table: str
    by: str
    reason: str
    dry_run: bool
    rows: int
    dead_letters: int = Field(alias="letters")
    text: str

    @property
    def ends_run(self) -> bool:
        """Return whether this is a dry run: no task follows."""
        return self.dry_run


class Erased(Message):
    """Outcome of an erasure; `snapshot_ids` belong to the stream's table."""

    stream: str
    table: str
    outcome: Literal["ERASED", "NOTHING"]
    rows: int
    dead_letters: int = Field(alias="letters")
    snapshot_ids: tuple[int, ...]
    text: str


class TableReport(Report):
    """Sizes of one table at one moment; files, bytes and rows are those of main's head."""

    table: str
    exists: bool = True
    rows: int = 0
    files: int = 0
    bytes: int = 0
    small_files: int = Field(0, description="files below three quarters of the target size")
    delete_files: int = 0
    hidden_rows: int = Field(0, description="rows in data files that delete files hide")
    files_with_many_deletes: int = Field(
        0, description="files of which delete files hide a tenth of the rows or more"
    )
    debt_files: int = Field(0, description="files that a compaction would rewrite")
    debt_bytes: int = 0
    manifests: int = 0
    snapshots: int = Field(0, description="snapshots in the metadata, staged ones included")
    metadata_files: int = Field(0, description="the current one and those in the metadata log")
    branches: int = 0
    tags: int = 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Describe the table in one line."""
        if not self.exists:
            return f"{self.table}: not created yet, nothing to maintain"
        parts = (
            count_noun(self.rows, "row"),
            f"{count_noun(self.files, 'file')} ({self.small_files:,} small)",
            format_bytes(self.bytes),
            *self._describe_deletes(),
            count_noun(self.manifests, "manifest"),
            count_noun(self.snapshots, "snapshot"),
            count_noun(self.metadata_files, "metadata file"),
            count_noun(self.branches, "branch", "branches"),
            count_noun(self.tags, "tag"),
        )
        return f"{self.table}: {', '.join(parts)}"

    def _describe_deletes(self) -> tuple[str, ...]:
        if not self.delete_files:
            return ()
        files = count_noun(self.delete_files, "delete file")
        verb = "hides" if self.delete_files == 1 else "hide"
        hidden = f"{files} {verb} {count_noun(self.hidden_rows, 'row')}"
        if not self.files_with_many_deletes:
            return (hidden,)
        return hidden, f"{count_noun(self.files_with_many_deletes, 'file')} with many deletes"


class TableCompaction(Report):
    """Sizes of one table before and after compaction."""

    before: TableReport
    after: TableReport
    rewritten: tuple[str, ...] = Field((), description="`files`, `manifests`")
    files_failed: int = Field(0, description="files left for the next run after a commit conflict")
    waiting_for: str | None = Field(
        None, description="staging branch of a merge, which needs main to stay where it is"
    )
    dry_run: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Describe the compaction in one line."""
        name = self.before.table
        if not self.before.exists:
            return self.before.text
        if self.waiting_for is not None:
            return f"{name}: skipped, branch {self.waiting_for} is about to be published"
        files = count_noun(self.before.files, "file")
        if not self.rewritten:
            return f"{name}: nothing to compact in {files}"
        if self.dry_run:
            size = format_bytes(self.before.debt_bytes)
            parts = {
                "files": f"{self.before.debt_files:,} of {files} ({size})",
                "manifests": count_noun(self.before.manifests, "manifest"),
            }
            return f"{name}: would rewrite {' and '.join(parts[kind] for kind in self.rewritten)}"
        failed = count_noun(self.files_failed, "file")
        later = f", {failed} left for the next run" if self.files_failed else ""
        deletes = ""
        if self.before.delete_files or self.after.delete_files:
            files = arrow(self.before.delete_files, self.after.delete_files)
            hidden = arrow(self.before.hidden_rows, self.after.hidden_rows)
            deletes = f", delete files {files} (hidden rows {hidden})"
        return (
            f"{name}: files {arrow(self.before.files, self.after.files)}, "
            f"{format_bytes(self.before.bytes)} → {format_bytes(self.after.bytes)}, "
            f"manifests {arrow(self.before.manifests, self.after.manifests)}{deletes}{later}"
        )


class TableExpiry(Report):
    """Snapshot expiry of one table; files and bytes are those that any snapshot uses."""

    table: str
    exists: bool = True
    snapshots_before: int = 0
    snapshots_after: int = 0
    expired_ids: tuple[int, ...] = Field((), description="expired ancestors of main, archived")
    abandoned_ids: tuple[int, ...] = Field((), description="snapshots that were never on main")
    dropped_branches: tuple[str, ...] = Field((), description="abandoned staging branches")
    carried_streams: tuple[str, ...] = Field(
        (), description="streams whose state was copied to the head by a carry snapshot"
    )
    archived_entries: int = 0
    forgotten_deletes: int = Field(
        0, description="recorded deletes of a state table that later rebuilds recorded again"
    )
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    dry_run: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Describe the expiry in one line."""
        if not self.exists:
            return f"{self.table}: not created yet, nothing to expire"
        expired = len(self.expired_ids) + len(self.abandoned_ids)
        counts = arrow(self.snapshots_before, self.snapshots_after)
        verb = "would expire" if self.dry_run else "expired"
        parts = [f"snapshots {counts} ({verb} {expired:,})"]
        if self.files_before:
            sizes = f"{format_bytes(self.bytes_before)} → {format_bytes(self.bytes_after)}"
            parts.append(f"stored files {arrow(self.files_before, self.files_after)}, {sizes}")
        if self.dropped_branches:
            verb = "would drop" if self.dry_run else "dropped"
            branches = count_noun(len(self.dropped_branches), "staging branch", "staging branches")
            parts.append(f"{verb} {branches}")
        if self.carried_streams:
            verb = "would copy" if self.dry_run else "copied"
            parts.append(f"{verb} state to the head: {', '.join(self.carried_streams)}")
        if self.forgotten_deletes:
            verb = "would remove" if self.dry_run else "removed"
            deletes = count_noun(self.forgotten_deletes, "recorded delete")
            parts.append(f"{verb} {deletes} of earlier rebuilds")
        return f"{self.table}: {'; '.join(parts)}"


class TableOrphans(Report):
    """Files in one table's folder that nothing references."""

    table: str
    exists: bool = True
    files: int = 0
    bytes: int = 0
    sample: tuple[str, ...] = ()
    dry_run: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Describe the orphan files in one line."""
        if not self.exists:
            return f"{self.table}: not created yet, no orphan files"
        if not self.files:
            return f"{self.table}: no orphan files"
        verb, files = "would delete" if self.dry_run else "deleted", self.files
        return (
            f"{self.table}: {verb} {count_noun(files, 'orphan file')}, {format_bytes(self.bytes)}"
        )


SomeTable = TypeVar("SomeTable", TableCompaction, TableExpiry, TableOrphans)


class TablesReport(Report, Generic[SomeTable]):
    """Result of a maintenance step on all tables of a stream, or its preview."""

    stream: str
    dry_run: bool = False
    tables: tuple[SomeTable, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Describe each table in one line."""
        return "\n".join(table.text for table in self.tables)


CompactReport: TypeAlias = TablesReport[TableCompaction]
ExpireReport: TypeAlias = TablesReport[TableExpiry]
OrphanReport: TypeAlias = TablesReport[TableOrphans]


class RowExpiryReport(Report):
    """Result of `expire_rows` on the stream's own table, or its preview.

    With a state table `rows` are the keys that expired, `trimmed` the changes that newer ones had
    replaced; `problem` is why nothing could be removed.
    """

    stream: str
    dry_run: bool = False
    column: str = Field("", description="the column with a row's age; empty: no rows expire")
    before_at: datetime | None = Field(None, description="rows before this instant expire")
    rows: int = 0
    earlier_columns: tuple[str, ...] = Field(
        (), description="columns with the times of older rows, set aside when the type changed"
    )
    other_columns: tuple[str, ...] = Field(
        (), description="columns that may have the times of older rows, as another type"
    )
    undated: int = Field(
        0, description="rows without a time but in `other_columns`, which stay; in a preview only"
    )
    trimmed_before: datetime | None = Field(
        None, description="replaced changes published before this instant go; empty: none do"
    )
    trimmed: int = 0
    held_by: tuple[str, ...] = Field(
        (), description="open dead letters of change events: changes that were read since then stay"
    )
    waiting: int = Field(
        0, description="batches of change events as old, but not merged: no change was trimmed"
    )
    problem: str = ""
    snapshot_ids: tuple[int, ...] = ()
    before: TableReport
    after: TableReport

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Describe the expired rows and trimmed changes, in a line each."""
        name, at = self.before.table, self.trimmed_before
        if self.problem:
            return f"{name}: {self.problem}"
        if at is None or not self.before.exists:
            return self._describe_rows(name)
        text = self._describe_trimmed(name, at)
        return f"{self._describe_rows(name)}\n{text}" if self.column else text

    def _describe_trimmed(self, name: str, at: datetime) -> str:
        if self.waiting:
            return (
                f"{name}: nothing was trimmed: old batches of change events that are not merged "
                f"yet may need values of replaced changes: {self.waiting:,}; run "
                f"`frazil merge {self.stream}` first"
            )
        trimmed = count_noun(self.trimmed, "replaced change")
        verb = "would trim" if self.dry_run else "trimmed"
        text = f"{name}: {verb} {trimmed} published before {at:%Y-%m-%d}"
        if self.held_by:
            text += (
                f"; changes read since the open dead letters {', '.join(self.held_by)} are kept "
                "for up to another `changes.keep_days`, because these may need them"
            )
        return text

    def _describe_rows(self, name: str) -> str:
        if not self.column:
            return f"{name}: all rows are kept (maintenance.expire_rows is not set)"
        if not self.before.exists:
            return self.before.text
        condition = f"with {self.column} before {self.before_at:%Y-%m-%d}"
        if self.earlier_columns:
            condition += f", or {', '.join(self.earlier_columns)} where {self.column} is null"
        kept = ""
        if self.undated:
            kept = (
                f"\n{name}: rows without {self.column} that stay: {self.undated:,}; the time "
                f"may be in {', '.join(self.other_columns)}, set aside when the type changed"
            )
        rows = f"{count_noun(self.rows, 'row')} {condition}"
        if not self.rows:
            return f"{name}: no rows {condition}{kept}"
        if self.dry_run:
            return f"{name}: would expire {rows}{kept}"
        return (
            f"{name}: expired {rows}; files {arrow(self.before.files, self.after.files)}, "
            f"{format_bytes(self.before.bytes)} → {format_bytes(self.after.bytes)}{kept}"
        )


def arrow(before: int, after: int) -> str:
    """Return a change as `before → after`."""
    return f"{before:,} → {after:,}"


def format_bytes(size_bytes: int) -> str:
    """Return a size with its unit, in powers of ten."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < _UNIT:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= _UNIT
    return f"{size:.1f} TB"
