"""Decide which files and manifests compaction rewrites, and check what a rewrite did.

The rules are those of Iceberg's bin-packing planner, so a Spark job starts only where it would
rewrite something.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from frazil.errors import ConservationError
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors

MEBIBYTE = 1024 * 1024
MIN_INPUT_FILES = 5
"""A partition with fewer small files is left as it is."""

SMALL_RATIO = 0.75
"""A file below this share of the target is small; Iceberg's default."""

LARGE_RATIO = 1.8
"""A file above this share of the target is split; Iceberg's default."""

DELETE_RATIO = 0.1
"""A file with this share of rows hidden by delete files is rewritten, whatever its size."""

MANIFEST_TARGET_BYTES = 8 * MEBIBYTE
MAX_SPARE_MANIFESTS = 20
"""Tolerated manifests above the needed number: each commit adds one, each query reads all."""

PASS_BYTES = 10 * 1024 * MEBIBYTE
"""Above this size a rewrite commits in parts, so that a conflict does not lose hours of work, and
begins with the files with most deletes, so that readers and merges wait least for it."""

Rewrite = Literal["files", "manifests"]


@dataclass(frozen=True)
class FileSize:
    """Partition (as text), size and rows of one live data file; delete files hide some of them."""

    partition: str
    size_bytes: int
    rows: int = 0
    hidden_rows: int = 0

    @property
    def hidden_share(self) -> float:
        """Return the share of rows that readers skip, from 0 to 1, as Iceberg computes it."""
        return self.hidden_rows / self.rows if self.rows else 0.0

    @property
    def has_many_deletes(self) -> bool:
        """Return whether readers skip enough rows for a rewrite to pay."""
        return self.hidden_share >= DELETE_RATIO


@dataclass(frozen=True)
class TableLayout:
    """The live data files, the manifests that list them, and the number of delete files."""

    files: tuple[FileSize, ...]
    manifest_bytes: tuple[int, ...]
    delete_files: int = 0

    @property
    def rows(self) -> int:
        """Return the number of rows that readers see, if no delete is by equality."""
        return sum(file.rows for file in self.files) - self.hidden_rows

    @property
    def hidden_rows(self) -> int:
        """Return the number of rows that delete files list by position: readers skip them."""
        return sum(file.hidden_rows for file in self.files)

    @property
    def data_bytes(self) -> int:
        """Return the total size of the live data files."""
        return sum(file.size_bytes for file in self.files)


def count_small(files: Iterable[FileSize], target_bytes: int) -> int:
    """Count the files below three quarters of the target."""
    return sum(1 for file in files if file.size_bytes < SMALL_RATIO * target_bytes)


def choose_inputs(files: Iterable[FileSize], target_bytes: int) -> list[FileSize]:
    """Return the files that a rewrite would read, in whole groups by partition."""
    groups: dict[str, list[FileSize]] = defaultdict(list)
    for file in files:
        fits = SMALL_RATIO * target_bytes <= file.size_bytes <= LARGE_RATIO * target_bytes
        if not fits or file.has_many_deletes:
            groups[file.partition].append(file)
    return [
        file
        for group in groups.values()
        if any(file.has_many_deletes for file in group)
        or _is_worthwhile([file.size_bytes for file in group], target_bytes)
        for file in group
    ]


def _is_worthwhile(sizes: Sequence[int], target_bytes: int) -> bool:
    enough_files = len(sizes) >= MIN_INPUT_FILES
    enough_content = len(sizes) > 1 and sum(sizes) > target_bytes
    too_much = sum(sizes) > LARGE_RATIO * target_bytes
    return enough_files or enough_content or too_much


def decide_rewrites(layout: TableLayout, target_bytes: int) -> tuple[Rewrite, ...]:
    """Return what is worth rewriting, in the order of execution."""
    needed = -(-sum(layout.manifest_bytes) // MANIFEST_TARGET_BYTES)
    spare = len(layout.manifest_bytes) - needed
    is_needed: dict[Rewrite, bool] = {
        "files": bool(choose_inputs(layout.files, target_bytes)),
        "manifests": spare > MAX_SPARE_MANIFESTS,
    }
    return tuple(rewrite for rewrite, needed_now in is_needed.items() if needed_now)


def plan_first_passes(files: Iterable[FileSize], target_bytes: int) -> tuple[float, ...]:
    """Return the shares of hidden rows from which on files are rewritten first, pass by pass.

    Each pass takes files of at most `PASS_BYTES`, or one larger file, and a last pass all others.
    There are no first passes where the last one is no larger.
    """
    inputs = choose_inputs(files, target_bytes)
    left = sum(file.size_bytes for file in inputs)
    worst = sorted(
        (file for file in inputs if file.has_many_deletes),
        key=lambda file: file.hidden_share,
        reverse=True,
    )
    shares, size = list[float](), 0
    for index, file in enumerate(worst, start=1):
        size += file.size_bytes
        is_full = index == len(worst) or size + worst[index].size_bytes > PASS_BYTES
        if is_full and left > PASS_BYTES:
            shares.append(file.hidden_share)
            left, size = left - size, 0
    return tuple(dict.fromkeys(shares))


def needs_partial_progress(layout: TableLayout, target_bytes: int) -> bool:
    """Return whether a rewrite commits in parts: it is large, or merges conflict with it."""
    if layout.delete_files:
        return True
    inputs = choose_inputs(layout.files, target_bytes)
    return sum(file.size_bytes for file in inputs) > PASS_BYTES


def require_same_row_count(before_head: int | None, after: History) -> None:
    """Check that every rewrite since `before_head` kept the number of rows (I8).

    Batches may land in between, so each `replace` snapshot is compared with its own parent.

    Raises:
        ConservationError: a rewrite lost or added rows.
    """
    for entry in walk_ancestors(after, beyond_metadata=False):
        if entry.snapshot_id == before_head:
            return
        parent = after.entries.get(entry.parent_id) if entry.parent_id is not None else None
        if entry.summary.get("operation") != "replace" or parent is None:
            continue
        rows_before, rows_after = _count_rows(parent), _count_rows(entry)
        if not rows_before - _count_hidden(parent) <= rows_after <= rows_before:
            raise ConservationError(
                f"table {after.table}: compaction snapshot {entry.snapshot_id} has {rows_after} "
                f"rows, its parent {parent.snapshot_id} has {rows_before}",
                f"`frazil audit` lists the records; snapshot {parent.snapshot_id} still holds "
                "them: roll main back to it, and report this",
            )


def _count_rows(entry: LedgerEntry) -> int:
    return int(entry.summary.get("total-records", "0"))


def _count_hidden(entry: LedgerEntry) -> int:
    """Count the rows that delete files may hide, which a rewrite drops.

    Equality deletes name no rows, so they may hide all of them.
    """
    if int(entry.summary.get("total-equality-deletes", "0")):
        return _count_rows(entry)
    return int(entry.summary.get("total-position-deletes", "0"))
