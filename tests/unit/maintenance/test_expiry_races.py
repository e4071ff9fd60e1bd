"""A merge that lands while row expiry runs: it leaves no change without its row."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import time_machine
from support.dated_lake import COUNTS, EXPIRE, NOW, SECTIONS, Dated
from support.scripted_catalog import honest, overtaken_by
from support.state_lake import Change, make_state_lake

from frazil.errors import StageStaleError
from frazil.iceberg.table_view import TableView
from frazil.ledger.coordinates import Offsets, Partition
from frazil.ledger.history import Step
from frazil.state_tables.merge_rules import MergePlan, find_position, plan_merge
from frazil.state_tables.messages import MergePosition
from frazil.state_tables.trim_rules import find_open

LettersByPartition = Mapping[Partition, Mapping[str, Offsets]]
BY_TIME = {"order": {"sequence_by": ["_kafka.timestamp"]}}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Dated]:
    """Merge an old row and a young one; the changes are ordered by their times."""
    with time_machine.travel(NOW):
        lake = make_state_lake(Dated, tmp_path, "orders", **SECTIONS["kafka"] | BY_TIME, **EXPIRE)
        lake.produce(0, Change(1, "c", 4, "old"), Change(2, "c", 96, "young"))
        lake.ingest_all()
        lake.merge()
        yield lake
        lake.close()


@dataclass
class Merge:
    """A merge of one batch, in two steps: others may write between them."""

    lake: Dated
    position: MergePosition | None = None
    rows: tuple[dict[str, object], ...] = ()

    def publish_new(self) -> None:
        """Publish a new key whose record is old already."""
        self.lake.produce(0, Change(3, "c", 4, "old and late"))
        self.lake.ingest_all()
        at = {"topic": "orders", "partition": 0, "offset": 2, "timestamp": NOW - timedelta(days=96)}
        self.rows = ({"id": 3, "at": 4, "name": "old and late", "_kafka": at},)
        self.position = self.lake.position(COUNTS)

    def publish_late(self) -> None:
        """Publish a change of the old row that is older still, so the row stays as it is."""
        self.lake.produce(1, Change(1, "u", 3, "late"))
        self.lake.ingest_all()
        self.position = self.lake.position(COUNTS)

    def land(self) -> None:
        """Move the state to what was published."""
        assert self.position is not None
        self.lake.put_state([*self.rows], self.position)


def plan_next(lake: Dated) -> MergePlan | None:
    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    return plan_merge(lake.history, lake.stream, position)


def run_between(monkeypatch: pytest.MonkeyPatch, *events: Callable[[], None]) -> None:
    """Let others act after the changes were read, and before the state is."""

    # The last step of the read.
    def find_and_wait(letters: LettersByPartition, steps: tuple[Step, ...]) -> object:
        monkeypatch.undo()
        for event in events:
            event()
        return find_open(letters, steps)

    monkeypatch.setattr("frazil.maintenance.row_expiry.find_open", find_and_wait)


def test_a_row_that_was_merged_meanwhile_expires_with_the_next_run(
    lake: Dated, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = Merge(lake)
    run_between(monkeypatch, merge.publish_new, merge.land)

    assert lake.expire().rows == 1

    assert (lake.changes_left(), lake.rows().keys()) == ([(0, 1), (0, 2)], {2, 3})
    assert (lake.find_wrong(), plan_next(lake)) == ([], None)
    assert lake.expire("again").rows == 1
    assert (lake.changes_left(), lake.rows().keys()) == ([(0, 1)], {2})


def test_a_key_with_a_change_that_was_merged_meanwhile_expires_with_the_next_run(
    lake: Dated, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = Merge(lake)
    run_between(monkeypatch, merge.publish_late, merge.land)

    assert lake.expire().rows == 0

    assert (len(lake.changes_left()), lake.rows().keys()) == (3, {1, 2})
    assert lake.expire("again").rows == 1
    assert (lake.changes_left(), lake.rows().keys()) == ([(0, 1)], {2})
    assert (lake.find_wrong(), plan_next(lake)) == ([], None)


def test_a_key_that_a_merge_touches_after_its_changes_are_gone_is_folded_again(
    lake: Dated,
) -> None:
    merge = Merge(lake)
    lake.catalog.script = [overtaken_by(merge.publish_late), honest, overtaken_by(merge.land)]

    with pytest.raises(StageStaleError, match="1 key got changes"):
        lake.expire()

    assert lake.rows().keys() == {1, 2}
    assert lake.find_wrong() == []
    plan = plan_next(lake)
    assert plan is not None
    assert (plan.added, "trim snapshot" in plan.reason) == (None, True)


def test_other_keys_expire_though_a_merge_overtakes(lake: Dated) -> None:
    merge = Merge(lake)
    lake.catalog.script = [overtaken_by(merge.publish_new), honest, overtaken_by(merge.land)]

    assert lake.expire().rows == 1

    assert (lake.changes_left(), lake.rows().keys()) == ([(0, 1), (0, 2)], {2, 3})
    assert (lake.find_wrong(), plan_next(lake)) == ([], None)


def test_a_merge_that_folded_what_is_left_is_right_as_it_is(lake: Dated) -> None:
    merge = Merge(lake)
    place = {"topic": "orders", "partition": 1, "offset": 0, "timestamp": NOW - timedelta(days=97)}

    def rebuild() -> None:
        merge.publish_late()
        lake.store.load(lake.state_name).delete("id == 1")
        merge.rows = ({"id": 1, "at": 3, "name": "late", "_kafka": place},)
        merge.land()

    lake.catalog.script = [honest, overtaken_by(rebuild)]

    assert lake.expire().rows == 1

    assert (lake.changes_left(), lake.rows()[1]) == ([(0, 1), (1, 0)], ("late", 1, 0))
    assert (lake.find_wrong(), plan_next(lake)) == ([], None)
