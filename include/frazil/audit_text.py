"""An audit in one line for people: what was compared, and what could not be."""

from collections import Counter
from collections.abc import Mapping

from frazil import keys
from frazil.audit_answer import AuditCounts
from frazil.audit_ledger import Step, is_history_cut
from frazil.audit_surroundings import count_adopted_rows
from frazil.coordinates import count_coordinates
from frazil.deletions import KINDS as DELETIONS
from frazil.offsets import count_offsets


def describe_audit(
    steps: tuple[Step, ...], head: int | None, counts: AuditCounts, checked_from: Mapping[str, int]
) -> str:
    """Say what was compared, and what could not be."""
    text = (
        f"{counts.records_delivered} records delivered by Kafka in {counts.batches} batches; "
        f"{counts.rows} rows, {counts.dead_letters} dead letters, {counts.rows_skipped} skipped; "
        f"main at snapshot {head}"
    )
    if counts.offsets_aged:
        starts = ", ".join(f"{name}@{offset}" for name, offset in checked_from.items() if offset)
        text += (
            f"; {counts.offsets_aged} published offsets have left Kafka: below {starts} only the "
            "ledger's own counts were checked"
        )
    text += _describe_decisions(steps)
    if counts.foreign_snapshots:
        text += f"; {counts.foreign_snapshots} snapshots by others changed rows"
    if is_history_cut(steps):
        text += f"; the ledger is known only from {steps[0]} on"
    return text


def _describe_decisions(steps: tuple[Step, ...]) -> str:
    """Say what people decided: gaps with what was lost, rollbacks, replays."""
    kinds = Counter(step.kind for step in steps)
    came = count_adopted_rows(steps)
    lost = sum(count_offsets(step.ranges) for step in steps if step.kind == keys.GAP)
    gone = sum(count_coordinates(step.gone) for step in steps if step.kind in DELETIONS)
    told = {
        keys.GAP: f"recorded gaps of {lost} lost offsets",
        keys.REWIND: "rewinds",
        keys.MOVE: "moves to another cluster",
        keys.REPLAY: "replays",
        keys.BACKFILL: "windows of a backfill",
        keys.ERASE: "erasures",
        keys.EXPIRE_ROWS: "expiries of rows",
    }
    text = "".join(f"; {kinds[kind]} {words}" for kind, words in told.items() if kinds[kind])
    text += f"; {came} rows came with the table and are not judged" if came else ""
    return (f"; {gone} rows left on purpose" if gone else "") + text
