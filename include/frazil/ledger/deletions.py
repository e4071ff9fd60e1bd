"""Deletions in the ledger: erased records, rows that the row expiry removed, trimmed changes.

The snapshot of a deletion lists the coordinates of every deleted record, so that an audit can check
that exactly those are missing (decision record 16).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from frazil import __version__
from frazil.ledger import keys
from frazil.ledger.coordinates import (
    NO_OFFSETS,
    Coordinates,
    DeadLetterCoordinates,
    Partition,
    count_coordinates,
    encode_coordinates,
    encode_dead_letters,
    parse_coordinates,
    parse_dead_letters,
)
from frazil.ledger.offsets import parse_ranges
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ledger

KINDS = frozenset({keys.ERASE, keys.EXPIRE_ROWS, keys.TRIM})
FINAL_KINDS = frozenset({keys.ERASE, keys.TRIM})
"""Deletions whose records a replay leaves out."""


@dataclass(frozen=True)
class Deletion:
    """One portion of a deletion; `words` are further entries of its summary."""

    kind: str
    stream: str
    run_id: str
    words: Mapping[str, str]
    portion: int = 0

    def name(self, table_uuid: str) -> str:
        """Return the deletion's id; a repeated run computes the same one and finds its commit."""
        words = sorted(self.words.items())
        parts = [table_uuid, self.stream, self.kind, words, self.run_id, self.portion]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def summarize(
        self,
        table_uuid: str,
        rows: int,
        deleted: Coordinates,
        dead_letters: DeadLetterCoordinates,
    ) -> dict[str, str]:
        """Return the snapshot summary, with the deleted rows and dead letters."""
        summary = {
            keys.KIND: self.kind,
            keys.STREAM: self.stream,
            keys.BATCH_ID: self.name(table_uuid),
            keys.ROWS_DELETED: str(rows),
            keys.COORDINATES: encode_coordinates(deleted),
            keys.RUN_ID: self.run_id,
            keys.VERSION: __version__,
            **self.words,
        }
        if dead_letters:
            summary[keys.LETTERS] = encode_dead_letters(dead_letters)
        return summary


def is_deletion(summary: Mapping[str, str]) -> bool:
    """Return whether a snapshot is a deletion."""
    return summary.get(keys.KIND) in KINDS


def parse_deleted(summary: Mapping[str, str]) -> Coordinates:
    """Read the coordinates of the rows that a deletion deleted; empty for other snapshots."""
    text = summary.get(keys.COORDINATES)
    return parse_coordinates(text) if text and is_deletion(summary) else {}


def parse_deleted_dead_letters(summary: Mapping[str, str]) -> DeadLetterCoordinates:
    """Read the dead letters that a snapshot deleted.

    A rollback repeats those of the deletions that it rolled back.
    """
    text = summary.get(keys.LETTERS)
    return parse_dead_letters(text) if text else {}


def count_erased(entries: tuple[LedgerEntry, ...]) -> int:
    """Count the rows that erasures on request deleted in these snapshots."""
    return sum(
        count_coordinates(parse_deleted(entry.summary))
        for entry in entries
        if entry.summary.get(keys.KIND) == keys.ERASE
    )


def find_deletion(
    history: History, stream: str, partition: Partition, offset: int
) -> LedgerEntry | None:
    """Find the deletion of a record that was not restored since; see `find_deleted`."""
    topic, number = partition
    is_replayed = False
    for entry in walk_ledger(history, stream):
        kind = entry.summary.get(keys.KIND)
        ranges = parse_ranges(entry.summary[keys.RANGES]) if keys.RANGES in entry.summary else {}
        span = ranges.get(topic, {}).get(number)
        if kind in keys.ROW_KINDS and span is not None and span.holds(offset):
            if kind == keys.INGEST:
                return None
            is_replayed = True
        dead_letters = (
            parse_deleted_dead_letters(entry.summary).values() if is_deletion(entry.summary) else ()
        )
        parts = (parse_deleted(entry.summary), *dead_letters)
        if any(np.isin(offset, part.get(partition, NO_OFFSETS)) for part in parts) and (
            kind in FINAL_KINDS or not is_replayed
        ):
            return entry
    return None
