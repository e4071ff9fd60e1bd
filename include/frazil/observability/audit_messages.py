"""Report of an audit: findings with the coordinates of their records, and counts."""

from collections.abc import Iterable
from typing import Literal

from frazil.ledger.coordinates import SHOWN_COORDINATES
from frazil.ledger.offsets import describe_offset
from frazil.messages import Report
from frazil.state_tables.state_audit import StateInvariant

Coordinate = tuple[str, int, int]
"""Topic, partition, offset."""
Invariant = Literal["I1", "I2", "I3", "I4", "I10"] | StateInvariant


class Finding(Report):
    """One broken invariant of ARCHITECTURE.md, with at most twenty of its records."""

    invariant: Invariant
    text: str
    coordinates: tuple[Coordinate, ...] = ()


class AuditCounts(Report):
    """Counts of an audit; `offsets_aged` published offsets are no longer in Kafka."""

    snapshots: int
    batches: int
    foreign_snapshots: int
    records_delivered: int
    rows: int
    dead_letters: int
    rows_skipped: int
    offsets_aged: int


class AuditReport(Report):
    """The verdict on one stream, from Kafka and the table alone.

    `checked_from` names per partition (`topic-0`) the first offset that could be compared with
    Kafka; below it only the ledger's own counts were checked.
    """

    stream: str
    table: str
    snapshot_id: int | None
    verdict: Literal["holds", "broken"]
    findings: tuple[Finding, ...]
    counts: AuditCounts
    checked_from: dict[str, int]
    facts_line: str


def find_records(
    invariant: Invariant, text: str, topic: str, partition: int, offsets: Iterable[int]
) -> Finding:
    """Build a finding about records; its text ends with their coordinates."""
    every = list(offsets)
    shown = [(topic, partition, int(offset)) for offset in every[:SHOWN_COORDINATES]]
    names = ", ".join(describe_offset(*each) for each in shown)
    more = f" and {len(every) - len(shown)} more" if len(every) > len(shown) else ""
    return Finding(invariant=invariant, text=f"{text}: {names}{more}", coordinates=tuple(shown))
