"""A small executable model of a table that Frazil, others and expiry move on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from frazil.ledger.recovery_point import (
    Archive,
    History,
    LedgerEntry,
    RecoveryPoint,
    find_recovery_points,
    keys,
    walk_ancestors,
)
from frazil.ledger.state import Hint, StreamState, encode_hint, encode_state, parse_state
from frazil.maintenance.expiry_rules import ExpiryPlan, decide_expiry
from frazil.streams.timestamps import HOUR_MS, RetentionWindow

WINDOW = RetentionWindow(expire_ms=72 * HOUR_MS, rollback_ms=24 * HOUR_MS)
STREAMS = ("a", "b")


def state_of(epoch: int, batch: str = "batch") -> StreamState:
    return StreamState(epoch, batch, {"t": (epoch,)}, {"t": "id"}, "cluster")


def find_state(lineage: Iterable[LedgerEntry], stream: str) -> StreamState | None:
    """Find a stream's newest state in a lineage."""
    key = keys.state_key(stream)
    return next((parse_state(e.summary[key]) for e in lineage if key in e.summary), None)


@dataclass
class TableModel:
    """A table's snapshots, refs, hints and archive, moved on as Frazil and others move them."""

    now_ms: int = 1000 * HOUR_MS
    head: int | None = None
    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    refs: dict[str, int] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    archive: dict[int, LedgerEntry] = field(default_factory=dict)
    ids: int = 0

    def history(self, *, with_archive: bool = True) -> History:
        archive = Archive(dict(self.archive) if with_archive else {})
        return History("t", "u", self.head, dict(self.entries), dict(self.hints), lambda: archive)

    def all_refs(self) -> dict[str, int]:
        return self.refs | ({"main": self.head} if self.head is not None else {})

    def points(self, *, with_archive: bool = True) -> Mapping[str, RecoveryPoint]:
        return find_recovery_points(self.history(with_archive=with_archive), *STREAMS)

    def add(
        self, parent: int | None, states: Mapping[str, StreamState], kind: str, **told: str
    ) -> int:
        """Add a snapshot; only the caller moves a ref to it."""
        self.ids += 1
        summary = {keys.state_key(stream): encode_state(state) for stream, state in states.items()}
        summary |= told
        entry = LedgerEntry(self.ids, parent, self.now_ms, {"operation": kind, **summary})
        self.entries[self.ids] = entry
        return self.ids

    def commit(self, states: Mapping[str, StreamState], kind: str = "append", **told: str) -> int:
        """Add a snapshot to main, with its hints."""
        self.head = self.add(self.head, states, kind, **told)
        for stream, state in states.items():
            hint = Hint(state.epoch, state.batch, self.head)
            self.hints[keys.hint_key(stream)] = encode_hint(hint)
        return self.head

    def publish(self, stream: str) -> int:
        point = self.points().get(stream)
        epoch = point.state.epoch + 1 if point else 0
        return self.commit({stream: state_of(epoch, f"{stream}{epoch}-{self.ids}")})

    def next_epochs(self) -> dict[str, int]:
        """Return each stream's epoch after a rewind."""
        return {stream: point.state.epoch + 1 for stream, point in self.points().items()}

    def rewind(self, target: int) -> None:
        """Do as `recover` does: the states of an ancestor, in higher epochs, on that ancestor."""
        lineage = tuple(walk_ancestors(replace(self.history(), head=target)))
        abandoned = self.head
        states = {
            stream: replace(find_state(lineage, stream) or state_of(0), epoch=epoch)
            for stream, epoch in self.next_epochs().items()
        }
        self.head = target
        self.commit(states)
        if abandoned is not None:
            self.refs[f"tag-{abandoned}"] = abandoned

    def expire(self, window: RetentionWindow) -> ExpiryPlan:
        """Do as `expire_snapshots` does: carry, archive, expire; give what went."""
        plan = decide_expiry(self.history(), self.all_refs(), self.now_ms, window)
        if plan.carry:
            points = self.points()
            self.commit({stream: points[stream].state for stream in plan.carry})
            plan = decide_expiry(self.history(), self.all_refs(), self.now_ms, window)
            assert plan.carry == ()
        for entry in walk_ancestors(self.history(), beyond_metadata=False):
            self.archive.setdefault(entry.snapshot_id, entry)
        for snapshot_id in (*plan.ancestor_ids, *plan.abandoned_ids):
            del self.entries[snapshot_id]
        return plan
