"""The recovery point, rule by rule (protocol.md, "Recovery point"), on literal histories."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lake import make_state

from frazil.errors import (
    ForeignRollbackError,
    HistoryCutError,
    TableError,
    TableRecreatedError,
    UnknownStateError,
)
from frazil.ingest.snapshot_summaries import find_newest
from frazil.ledger.recovery_point import (
    EMPTY_ARCHIVE,
    Archive,
    History,
    LedgerEntry,
    RecoveryPoint,
    find_batch,
    find_recovery_point,
    keys,
    walk_ancestors,
)
from frazil.ledger.state import Hint, StreamState, encode_hint, encode_state

FOREIGN: Mapping[str, str] = {"operation": "append"}
COMPACTION: Mapping[str, str] = {"operation": "replace"}
REPLAY: Mapping[str, str] = {keys.KIND: "replay", keys.BATCH_ID: "replay-1"}


def state_at(epoch: int) -> StreamState:
    """Make the state of an epoch."""
    return make_state({"orders": (epoch * 10, 0)}, epoch=epoch, batch=f"b{epoch}")


def carrying(epoch: int, stream: str = "orders") -> Mapping[str, str]:
    """Write the summary of a snapshot that carries a stream's state."""
    return {keys.state_key(stream): encode_state(state_at(epoch)), keys.BATCH_ID: f"b{epoch}"}


def hinting(epoch: int, stream: str = "orders") -> dict[str, str]:
    """Write the table property that hints at an epoch."""
    return {keys.hint_key(stream): encode_hint(Hint(epoch, f"b{epoch}", 100 + epoch))}


def history_of(
    *summaries: Mapping[str, str], properties: Mapping[str, str] | None = None
) -> History:
    """Make a line of snapshots 1, 2, 3 … with these summaries, the last one main's head."""
    entries = {
        number: LedgerEntry(number, number - 1 or None, number, summary)
        for number, summary in enumerate(summaries, start=1)
    }
    head = len(summaries) or None
    return History("demo.orders", "uuid-1", head, entries, properties or {})


def archived(history: History, *gone: int, erase: bool = False) -> History:
    """Archive every entry, then take some away; `erase` cuts the parent ids of survivors too."""
    archive = Archive(dict(history.entries))
    left = {
        number: replace(entry, parent_id=None) if erase and entry.parent_id in gone else entry
        for number, entry in history.entries.items()
        if number not in gone
    }
    return replace(history, entries=left, load_archive=lambda: archive)


def test_a_table_without_snapshots_is_new() -> None:
    assert find_recovery_point(history_of(), "orders") is None


def test_a_new_stream_on_an_old_table_is_new() -> None:
    history = history_of(FOREIGN, carrying(3, "sales"), properties=hinting(3, "sales"))

    assert find_recovery_point(history, "orders") is None
    assert find_recovery_point(archived(history, 1), "orders") is None


def test_the_newest_state_on_main_is_the_recovery_point() -> None:
    history = history_of(carrying(0), carrying(1), carrying(2), properties=hinting(2))

    assert find_recovery_point(history, "orders") == RecoveryPoint(state_at(2), 3)


@pytest.mark.parametrize(
    "above",
    [FOREIGN, COMPACTION, REPLAY, {"operation": "delete"}, carrying(9, "sales")],
    ids=["a foreign append", "compaction", "a replay", "a delete", "another stream's batch"],
)
def test_the_recovery_point_steps_over(above: Mapping[str, str]) -> None:  # C2, C3
    history = history_of(carrying(0), carrying(1), above, above, properties=hinting(1))

    assert find_recovery_point(history, "orders") == RecoveryPoint(state_at(1), 2)


def test_a_snapshot_that_is_no_ancestor_does_not_count() -> None:  # C7
    history = history_of(carrying(0), carrying(1))
    staged = LedgerEntry(99, 2, 99, carrying(7))

    beside = replace(history, entries={**history.entries, 99: staged})

    assert find_recovery_point(beside, "orders") == RecoveryPoint(state_at(1), 2)


def test_a_hint_behind_the_carrier_means_nothing() -> None:  # C4
    history = history_of(carrying(0), carrying(5), properties=hinting(2))

    assert find_recovery_point(history, "orders") == RecoveryPoint(state_at(5), 2)


def test_a_hint_ahead_of_the_carrier_halts_as_a_foreign_rollback() -> None:  # C5
    history = history_of(carrying(0), carrying(1), properties=hinting(4))

    with pytest.raises(ForeignRollbackError) as caught:
        find_recovery_point(history, "orders")

    assert "main is at epoch 1 of stream orders (snapshot 2)" in caught.value.facts
    assert "epoch 4 (snapshot 104)" in caught.value.facts
    assert "frazil recover orders --reingest" in caught.value.next_step


def test_a_hint_without_a_carrier_halts_and_never_bootstraps() -> None:  # C1
    with pytest.raises(HistoryCutError, match="snapshot 104, epoch 4"):
        find_recovery_point(history_of(FOREIGN, properties=hinting(4)), "orders")


def test_an_archive_row_without_a_carrier_halts_and_never_bootstraps() -> None:
    cut = replace(history_of(FOREIGN), load_archive=lambda: Archive({9: _loose_entry()}))

    with pytest.raises(HistoryCutError, match="the ledger archive"):
        find_recovery_point(cut, "orders")


def _loose_entry() -> LedgerEntry:
    """Make an archived entry that main's head does not lead to."""
    return LedgerEntry(9, None, 9, carrying(3))


def test_an_empty_table_whose_stream_is_archived_halts() -> None:
    emptied = replace(history_of(), load_archive=lambda: Archive({9: _loose_entry()}))

    with pytest.raises(HistoryCutError):
        find_recovery_point(emptied, "orders")


def test_a_table_that_was_created_again_halts_by_that_name() -> None:  # C6
    archive = Archive({}, frozenset({"uuid-0"}), frozenset({"orders"}))
    again = replace(history_of(), load_archive=lambda: archive)

    with pytest.raises(TableRecreatedError, match=r"uuid uuid-1, but .* uuid uuid-0"):
        find_recovery_point(again, "orders")
    assert find_recovery_point(again, "sales") is None


@pytest.mark.parametrize("erase", [False, True], ids=["expired parents", "erased parents"])
def test_ancestry_goes_on_in_the_archive(erase: bool) -> None:  # noqa: FBT001
    history = history_of(carrying(0), carrying(1), FOREIGN, COMPACTION, properties=hinting(1))

    cut = archived(history, 1, 2, 3, erase=erase)

    assert [entry.snapshot_id for entry in walk_ancestors(cut)] == [4, 3, 2, 1]
    assert find_recovery_point(cut, "orders") == RecoveryPoint(state_at(1), 2)


def test_ancestry_may_leave_and_enter_the_metadata_again() -> None:
    history = history_of(carrying(0), FOREIGN, carrying(1), FOREIGN)

    cut = archived(history, 2, erase=True)

    assert [entry.snapshot_id for entry in walk_ancestors(cut)] == [4, 3, 2, 1]


def test_without_the_archive_the_walk_ends_with_the_metadata() -> None:
    cut = archived(history_of(carrying(0), FOREIGN, carrying(1)), 1, 2)

    assert [e.snapshot_id for e in walk_ancestors(cut, beyond_metadata=False)] == [3]


def test_a_circle_of_parents_ends() -> None:
    entries = {1: LedgerEntry(1, 2, 1, FOREIGN), 2: LedgerEntry(2, 1, 2, FOREIGN)}

    assert len(list(walk_ancestors(History("t", "u", 1, entries, {})))) == 2


def test_the_archive_is_not_asked_where_the_metadata_knows() -> None:
    def refuse() -> Archive:
        raise AssertionError

    history = replace(history_of(carrying(0), carrying(1), FOREIGN), load_archive=refuse)

    assert find_recovery_point(history, "orders") == RecoveryPoint(state_at(1), 2)


def test_the_archive_is_not_asked_below_a_tables_first_snapshot() -> None:
    asked: list[str] = []
    cut = replace(history_of(carrying(0)), load_archive=lambda: asked.append("cut") or Archive({}))
    first = replace(cut.entries[1], is_first=True)
    whole = replace(cut, entries={1: first}, load_archive=lambda: asked.append("whole"))

    points = [find_recovery_point(history, "orders") for history in (cut, whole)]

    assert points == [RecoveryPoint(state_at(0), 1)] * 2
    assert asked == ["cut"]


def test_a_published_batch_is_found_on_main_and_in_the_archive() -> None:
    history = history_of(carrying(0), carrying(1), carrying(2))
    cut = archived(history, 1, 2)

    found = find_batch(cut, "b1")

    assert found is not None
    assert found.snapshot_id == 2
    assert find_batch(cut, "b1", beyond_metadata=False) is None
    assert find_batch(cut, "b7") is None


@dataclass
class World:
    """A table as a random history makes it, with what must be true of it beside."""

    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    rows: dict[int, LedgerEntry] = field(default_factory=dict)
    truth: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)
    head: int | None = None
    hint: int = -1

    def commit(self, summary: Mapping[str, str], epoch: int | None = None) -> None:
        """Add a snapshot on main; `epoch` if it carries a state."""
        number = len(self.truth) + 1
        self.entries[number] = LedgerEntry(number, self.head, number, summary)
        self.truth[number] = (self.head, epoch)
        self.head = number
        self.hint = self.hint if epoch is None else epoch

    @property
    def line(self) -> list[int]:
        """List main's true ancestors, newest first."""
        found, current = [], self.head
        while current is not None:
            found.append(current)
            current = self.truth[current][0]
        return found

    @property
    def epoch(self) -> int | None:
        """Return the newest epoch on main's true ancestry."""
        return next((e for n in self.line if (e := self.truth[n][1]) is not None), None)

    @property
    def history(self) -> History:
        """Show the world as the product sees it."""
        archive = Archive(dict(self.rows)) if self.rows else EMPTY_ARCHIVE
        properties = hinting(self.hint) if self.hint >= 0 else {}
        return History("t", "u", self.head, dict(self.entries), properties, lambda: archive)

    def act(self, event: str, at: int) -> None:
        """Let one thing happen; `at` chooses a snapshot where one is needed."""
        line = self.line
        target = line[at % len(line)]
        match event:
            case "ingest":
                self.commit(carrying(self.hint + 1), self.hint + 1)
            case "foreign" | "compaction":
                self.commit(FOREIGN if event == "foreign" else COMPACTION)
            case "rewind":
                self.head = target
                self.commit(carrying(self.hint + 1), self.hint + 1)
            case "rollback":
                self.head = target
            case "archive":
                for number in line:
                    if number in self.entries:
                        self.rows.setdefault(number, self.entries[number])
            case "expire" | "erase":
                self.expire(target, erase=event == "erase")

    def expire(self, below: int, *, erase: bool) -> None:
        """Take every ancestor below a snapshot away, by Spark's way or by PyIceberg's."""
        line = self.line
        for number in line[line.index(below) + 1 :]:
            self.entries.pop(number, None)
        for number, entry in self.entries.items():
            if erase and entry.parent_id is not None and entry.parent_id not in self.entries:
                self.entries[number] = replace(entry, parent_id=None)


PLAIN = ["ingest", "foreign", "compaction", "rewind"]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([*PLAIN, "rollback", "archive", "expire", "erase"]), st.integers(0, 9)
    ),
    max_size=25,
)


def live(events: list[tuple[str, int]], *, archive_first: bool = False) -> World:
    """Bootstrap a table and let the events happen."""
    world = World()
    world.commit(carrying(0), 0)
    for event, at in events:
        if archive_first and event in {"expire", "erase", "rollback", "rewind"}:
            world.act("archive", 0)
        world.act(event, at)
    return world


@given(EVENTS)
def test_in_any_history_the_recovery_point_is_the_truth_or_a_halt(
    events: list[tuple[str, int]],
) -> None:
    world = live(events)

    try:
        point = find_recovery_point(world.history, "orders")
    except TableError:
        return

    assert point is not None, "never a bootstrap where there was a state"
    assert point.state == state_at(world.epoch if world.epoch is not None else -1)


@given(EVENTS)
def test_with_every_ancestor_archived_only_a_rollback_by_others_halts(
    events: list[tuple[str, int]],
) -> None:
    world = live(events, archive_first=True)

    if world.epoch != world.hint:
        with pytest.raises(ForeignRollbackError):
            find_recovery_point(world.history, "orders")
        return

    point = find_recovery_point(world.history, "orders")
    assert point is not None
    assert point.state.epoch == world.epoch


@given(EVENTS)
def test_a_rollback_by_others_is_never_overlooked(events: list[tuple[str, int]]) -> None:  # E4
    world = live(events)

    if world.epoch != world.hint:
        with pytest.raises(TableError):
            find_recovery_point(world.history, "orders")


def test_a_state_or_a_hint_that_nobody_can_read_is_named_by_table_snapshot_and_stream() -> None:
    newer = {keys.state_key("orders"): '{"v":9}'}

    with pytest.raises(UnknownStateError, match=r"snapshot 2 of table demo\.orders, stream orders"):
        find_recovery_point(history_of(carrying(1), newer), "orders")
    with pytest.raises(UnknownStateError, match=r"table demo\.orders, stream orders, has"):
        find_recovery_point(history_of(properties={keys.hint_key("orders"): "[]"}), "orders")


def reading(epoch: int, newest: int, stream: str = "orders") -> Mapping[str, str]:
    """Write the summary of a batch after which this timestamp is the newest."""
    return {**carrying(epoch, stream), keys.NEWEST_TIMESTAMP_MS: str(newest)}


@pytest.mark.parametrize(
    ("above", "newest"),
    [
        ((), 7),
        ((COMPACTION,), 7),
        ((REPLAY | {keys.NEWEST_TIMESTAMP_MS: "3"},), 7),
        ((reading(1, 99, "other"),), 7),
        ((carrying(2),), 7),
        ((reading(2, 9),), 9),
    ],
)
def test_the_newest_timestamp_is_that_of_the_streams_last_batch(
    above: tuple[Mapping[str, str], ...], newest: int
) -> None:
    assert find_newest(history_of(reading(1, 7), *above), "orders") == newest


def test_a_stream_without_batches_has_no_newest_timestamp() -> None:
    assert find_newest(history_of(carrying(1)), "orders") is None
