"""What maintenance asks Spark to do with one table, and what it answers."""

from datetime import datetime
from typing import Literal

from pydantic import Field, computed_field

from frazil.messages import Message, Report


class TableRequest(Message):
    """What a maintenance job is asked to do with one table."""

    catalog: str
    table: str
    action: Literal["compact", "manifests", "expire", "orphans"]
    target_bytes: int = 128 * 1024 * 1024
    partial_progress: bool = False
    rewrite_all: bool = False
    prefix_listing: bool = False
    snapshot_ids: tuple[int, ...] = ()
    older_than_ms: int = 0
    dry_run: bool = True
    session_conf: dict[str, str] = Field(default_factory=dict)


class TableResult(Message):
    """What a maintenance job did."""

    counts: dict[str, int]
    paths: tuple[str, ...] = ()


class ErasureRequest(Message):
    """Keys as `column=value`, here or line by line in a file; who and why unless it is a dry run.

    This message holds personal data: it is read from the form or the command line, and never
    handed on.
    """

    stream: str
    keys: tuple[str, ...] = Field((), repr=False)
    keys_file: str | None = None
    by: str = ""
    reason: str = ""
    dry_run: bool = True


class ErasurePlan(Message):
    """What an erasure would take, as counts; the keys are not in it."""

    stream: str
    table: str
    by: str
    reason: str
    dry_run: bool
    rows: int
    letters: int
    text: str

    @property
    def is_last_word(self) -> bool:
        """Say that a dry run ends here."""
        return self.dry_run


class Erased(Message):
    """How an erasure ended; `snapshot_ids` are those of the stream's table."""

    stream: str
    table: str
    outcome: Literal["ERASED", "NOTHING"]
    rows: int
    letters: int
    snapshot_ids: tuple[int, ...]
    text: str


_UNIT = 1000


class TableReport(Report):
    """One table at one moment; files, bytes and rows are those of main's head."""

    table: str
    exists: bool = True
    rows: int = 0
    files: int = 0
    bytes: int = 0
    small_files: int = Field(0, description="files below three quarters of the target size")
    manifests: int = 0
    snapshots: int = Field(0, description="snapshots in the metadata, staged ones included")
    metadata_files: int = Field(0, description="the current one and those in the metadata log")
    branches: int = 0
    tags: int = 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Say it in a line."""
        if not self.exists:
            return f"{self.table}: not there yet, nothing to maintain"
        return (
            f"{self.table}: {self.rows:,} rows, {self.files:,} files ({self.small_files:,} small), "
            f"{format_bytes(self.bytes)}, {self.manifests:,} manifests, {self.snapshots:,} "
            f"snapshots, {self.metadata_files:,} metadata files, {self.branches} branches, "
            f"{self.tags} tags"
        )


class TableCompaction(Report):
    """What compaction did to one table."""

    before: TableReport
    after: TableReport
    rewritten: tuple[str, ...] = Field((), description="`files`, `manifests`")
    files_failed: int = Field(0, description="files whose rewrite lost a race; the next run's")
    waiting_for: str | None = Field(None, description="a staged merge that needs main to stay")
    dry_run: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Say it in a line."""
        name = self.before.table
        if not self.before.exists:
            return self.before.text
        if self.waiting_for is not None:
            return f"{name}: left alone, {self.waiting_for} is about to be published"
        if not self.rewritten:
            return f"{name}: nothing to compact in {self.before.files:,} files"
        if self.dry_run:
            size = f"{self.before.files:,} files, {format_bytes(self.before.bytes)}"
            return f"{name}: would rewrite {' and '.join(self.rewritten)} ({size})"
        later = f", {self.files_failed} files left for the next run" if self.files_failed else ""
        return (
            f"{name}: files {arrow(self.before.files, self.after.files)}, "
            f"{format_bytes(self.before.bytes)} → {format_bytes(self.after.bytes)}, "
            f"manifests {arrow(self.before.manifests, self.after.manifests)}{later}"
        )


class CompactReport(Report):
    """What `compact_table` did; a dry run names in `rewritten` what it would rewrite."""

    stream: str
    dry_run: bool = False
    tables: tuple[TableCompaction, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Say it in a line for each table."""
        return "\n".join(table.text for table in self.tables)


class TableExpiry(Report):
    """What expiry did to one table; files and bytes are those that any snapshot uses."""

    table: str
    exists: bool = True
    snapshots_before: int = 0
    snapshots_after: int = 0
    expired_ids: tuple[int, ...] = Field((), description="ancestors of main, archived before")
    abandoned_ids: tuple[int, ...] = Field((), description="snapshots that main never held")
    dropped_branches: tuple[str, ...] = Field((), description="forsaken staging branches")
    carried_streams: tuple[str, ...] = Field((), description="states put into a carry snapshot")
    archived_entries: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    dry_run: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Say it in a line."""
        if not self.exists:
            return f"{self.table}: not there yet, nothing to expire"
        going = len(self.expired_ids) + len(self.abandoned_ids)
        counts = arrow(self.snapshots_before, self.snapshots_after)
        parts = [f"snapshots {counts} ({'would expire' if self.dry_run else 'expired'} {going:,})"]
        if self.files_before:
            sizes = f"{format_bytes(self.bytes_before)} → {format_bytes(self.bytes_after)}"
            parts.append(f"stored files {arrow(self.files_before, self.files_after)}, {sizes}")
        if self.dropped_branches:
            verb = "to drop" if self.dry_run else "dropped"
            parts.append(f"staging branches {verb}: {len(self.dropped_branches)}")
        if self.carried_streams:
            verb = "to carry" if self.dry_run else "carried"
            parts.append(f"state {verb} to the head: {', '.join(self.carried_streams)}")
        return f"{self.table}: {'; '.join(parts)}"


class ExpireReport(Report):
    """What `expire_snapshots` did, or would do."""

    stream: str
    dry_run: bool = False
    tables: tuple[TableExpiry, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Say it in a line for each table."""
        return "\n".join(table.text for table in self.tables)


class TableOrphans(Report):
    """Files of one table's folder that nothing references."""

    table: str
    exists: bool = True
    files: int = 0
    bytes: int = 0
    sample: tuple[str, ...] = ()
    dry_run: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Say it in a line."""
        if not self.exists:
            return f"{self.table}: not there yet, no orphans"
        if not self.files:
            return f"{self.table}: no orphan files"
        verb = "would delete" if self.dry_run else "deleted"
        return f"{self.table}: {verb} {self.files:,} orphan files, {format_bytes(self.bytes)}"


class OrphanReport(Report):
    """What `remove_orphans` deleted, or would delete."""

    stream: str
    dry_run: bool = False
    tables: tuple[TableOrphans, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Say it in a line for each table."""
        return "\n".join(table.text for table in self.tables)


class RowExpiryReport(Report):
    """What `expire_rows` took out, or would take out, of the stream's own table."""

    stream: str
    dry_run: bool = False
    column: str = Field("", description="the column that says how old a row is; none: all stay")
    before_at: datetime | None = Field(None, description="rows before this instant go")
    rows: int = 0
    snapshot_ids: tuple[int, ...] = ()
    before: TableReport
    after: TableReport

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """Say it in a line."""
        name = self.before.table
        if not self.column:
            return f"{name}: every row is kept, maintenance.expire_rows is not set"
        if not self.before.exists:
            return self.before.text
        what = f"{self.rows:,} rows with {self.column} before {self.before_at:%Y-%m-%d}"
        if self.dry_run or not self.rows:
            return f"{name}: {'would expire' if self.rows else 'nothing to expire:'} {what}"
        return (
            f"{name}: expired {what}; files {arrow(self.before.files, self.after.files)}, "
            f"{format_bytes(self.before.bytes)} → {format_bytes(self.after.bytes)}"
        )


def arrow(before: int, after: int) -> str:
    """Write a change as people read it."""
    return f"{before:,} → {after:,}"


def format_bytes(size_bytes: int) -> str:
    """Write a size with its unit, in powers of ten."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < _UNIT:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= _UNIT
    return f"{size:.1f} TB"
