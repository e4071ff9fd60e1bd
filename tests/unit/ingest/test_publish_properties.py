"""Whatever overlaps, is rolled back or expires: the batches on main are one chain of offsets.

Plans are made and judged by the product's own functions; Kafka and the table are models.
"""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.expiry_model import STREAMS, WINDOW, TableModel, state_of
from support.lake import make_stream

from frazil.errors import ForeignRollbackError, SupersededError
from frazil.ingest.messages import BatchPlan
from frazil.ingest.planning import PlanInput, TableFacts, plan_batch
from frazil.ingest.publishing import check_base, find_published
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.recovery_point import find_recovery_point, keys
from frazil.streams.timestamps import HOUR_MS

STREAM = STREAMS[0]
MOST_PARTITIONS = 3


@dataclass
class Lives(TableModel):
    """A topic and a table with runs of a stream, some long dead when they come to publish.

    `ends`, `parents` and `reads` remember what truly happened; the ledger is not asked for it.
    """

    ends: list[int] = field(default_factory=lambda: [0])
    plans: list[BatchPlan] = field(default_factory=list)
    parents: dict[int, int | None] = field(default_factory=dict)
    reads: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)

    def add(self, parent: int | None, *words: object, **told: str) -> int:
        made = super().add(parent, *words, **told)  # type: ignore[arg-type]
        self.parents[made] = parent
        return made

    def produce(self, chance: random.Random) -> None:
        """Let records come, and now and then a partition."""
        if len(self.ends) < MOST_PARTITIONS and chance.random() < 0.2:
            self.ends.append(0)
        self.ends = [end + chance.randrange(4) for end in self.ends]

    def plan(self, limit: int) -> None:
        """Plan on what main and the topic say now, as a run does."""
        point = find_recovery_point(self.history(), STREAM)
        assert point is not None
        stream = make_stream(STREAM, source={"topic": "t"}, batch={"max_records": limit})
        partitions = tuple(PartitionOffsets(0, end) for end in self.ends)
        topic = TopicFacts("t", "id", "cluster", partitions)
        planned = plan_batch(PlanInput(stream, point.state, [topic], TableFacts("u", 0, 0), ""))
        if isinstance(planned, BatchPlan):
            spans = planned.ranges["t"]
            assert 0 < sum(end - start for start, end in spans.values()) <= limit
            assert all(end <= self.ends[partition] for partition, (_, end) in spans.items())
            self.plans.append(planned)
        else:
            assert list(point.state.offsets["t"]) == self.ends[: len(point.state.offsets["t"])]
            assert not any(self.ends[len(point.state.offsets["t"]) :])

    def land(self, plan: BatchPlan) -> bool:
        """Publish if the decision allows it; say whether the batch is on main."""
        history = self.history()
        if find_published(history, plan) is not None:
            return True
        with suppress(SupersededError, ForeignRollbackError):
            check_base(history, plan)
            point = find_recovery_point(history, STREAM)
            assert point is not None
            assert plan.state_after.epoch == point.state.epoch + 1
            told = {keys.BATCH_ID: plan.batch_id}
            made = self.commit({STREAM: plan.state_after}, "append", **told)
            self.reads[made] = plan.ranges["t"]
            return True
        return False

    def answer(self) -> None:
        """Read again what somebody rolled back, as `recover --reingest` does."""
        hints, history = self.history().hint(STREAM), replace(self.history(), properties={})
        point = find_recovery_point(history, STREAM)
        assert hints is not None
        assert point is not None
        self.commit({STREAM: replace(point.state, epoch=hints.epoch + 1)})

    def lineage(self) -> Iterator[int]:
        """Iterate over the true ancestors of main, the newest first."""
        at = self.head
        while at is not None:
            yield at
            at = self.parents[at]


def live_on(lives: Lives, chance: random.Random) -> None:
    """Let one random thing happen; a rollback by others is answered before the next plan."""
    there = [i for i in lives.lineage() if i in lives.entries]
    match chance.choice("nnllllfcrbw"):
        case "n":
            lives.produce(chance)
            lives.plan(chance.randrange(1, 8))
        case "l" if lives.plans:
            lives.land(chance.choice(lives.plans))
        case "f":
            lives.commit({}, "append")
        case "c":
            lives.commit({}, "replace")
        case "r":
            lives.rewind(chance.choice(there))
        case "b":
            lives.head = chance.choice(there)
            for plan in lives.plans:  # nobody may publish on a table that was rolled back
                lives.land(plan)
            with suppress(ForeignRollbackError):
                find_recovery_point(lives.history(), STREAM)
                return
            lives.answer()
        case "w":
            lives.expire(WINDOW)
    lives.now_ms += chance.randrange(40 * HOUR_MS)


def begin() -> Lives:
    lives = Lives()
    lives.commit({STREAM: state_of(0, "bootstrap")})
    return lives


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_the_batches_on_main_are_one_chain_without_gap_or_overlap(  # E1, E2
    seed: int, steps: int
) -> None:
    lives, chance = begin(), random.Random(seed)

    for _ in range(steps):
        live_on(lives, chance)
    lives.ends = [end + 1 for end in lives.ends]
    lives.plan(limit=1000)
    assert lives.land(lives.plans[-1])

    point = find_recovery_point(lives.history(), STREAM)
    assert point is not None
    read = [lives.reads[i] for i in reversed([*lives.lineage()]) if i in lives.reads]
    for partition, reached in enumerate(point.state.offsets["t"]):
        spans = [spans[partition] for spans in read if partition in spans]
        ends = [0, *(end for _, end in spans)]
        assert [start for start, _ in spans] == ends[:-1]
        assert reached == ends[-1] == lives.ends[partition]


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_a_batch_that_is_on_main_is_found_and_never_lands_again(  # D1
    seed: int, steps: int
) -> None:
    lives, chance = begin(), random.Random(seed)
    for _ in range(steps):
        live_on(lives, chance)
    present = [lives.reads[i] for i in lives.lineage() if i in lives.reads]
    head = lives.head

    landed = [plan for plan in lives.plans if find_published(lives.history(), plan)]

    assert all(plan.ranges["t"] in present for plan in landed)
    assert all(lives.land(plan) for plan in landed)
    assert lives.head == head
