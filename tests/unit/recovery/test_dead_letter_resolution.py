"""Dead letters of a long history: resolved as defined, in a number of steps that stays linear."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from support.steps import count_steps

from frazil.ingest.dead_letters import DeadLetterIndex, Resolved, resolve_dead_letters
from frazil.ledger import keys
from frazil.ledger.history import UNCLAIMED, Span, Spans, Step
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import LedgerEntry

OFFSETS = 8
steps_of_a_life = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, OFFSETS), st.integers(0, OFFSETS)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("redrive"), st.integers(0, 2**OFFSETS - 1), st.integers(0, 20)),
    ),
    max_size=20,
)


@dataclass
class Life:
    """The spans of one partition, the ends of its logs, what redrives restored, dead letters."""

    spans: list[Span]
    restarts: list[int]
    resolved: dict[int, Resolved]
    letters: list[tuple[int, int]]

    def list_states(self) -> list[tuple[bool, int]]:
        """Judge each dead letter by itself: whether it is open, and which redrive restored it."""
        return [self._judge(*letter) for letter in self.letters]

    def _judge(self, offset: int, index: int) -> tuple[bool, int]:
        owners = [s.index for s in self.spans if s.start <= offset < s.end]
        log_end = min((r for r in self.restarts if r >= index), default=100)
        if index not in owners or any(index < each <= log_end for each in owners):
            return False, UNCLAIMED
        for redrive, listed in sorted(self.resolved.items()):
            known = [each for each in owners if each < listed.before]
            if offset in listed.offsets and known and known[-1] == index:
                return False, redrive
        return True, UNCLAIMED


def live(changes: list[tuple[str, int, int]]) -> Life:
    """Make the history of one partition; each read has a dead letter at each offset from 0 on."""
    life = Life([], [], {}, [])
    for index, (kind, first, second) in enumerate(changes):
        if kind == "read":
            life.spans.append(Span(min(first, second), max(first, second), index))
            life.letters += [(offset, index) for offset in range(OFFSETS)]
        elif kind == "restart":
            life.restarts.append(index)
        else:
            listed = [offset for offset in range(OFFSETS) if first >> offset & 1]
            life.resolved[index] = Resolved(np.array(listed, np.int64), min(second, index))
    life.letters = sorted([*life.letters, (3, UNCLAIMED)], key=lambda letter: letter[0])
    return life


@given(steps_of_a_life)
def test_each_dead_letter_is_resolved_as_if_it_were_alone(
    changes: list[tuple[str, int, int]],
) -> None:
    life = live(changes)
    last = max(life.restarts, default=UNCLAIMED)
    spans = Spans(
        tuple(s for s in life.spans if s.index > last),
        tuple(s for s in life.spans if s.index < last),
        restarts=tuple(life.restarts),
    )
    offsets, indexes = np.array(life.letters, np.int64).T

    found = resolve_dead_letters(offsets, indexes, spans, life.resolved)

    states = zip(found.is_open.tolist(), found.resolved_by_step.tolist(), strict=True)
    assert list(states) == life.list_states()


def make_ledger(batches: int, partitions: int) -> tuple[pa.Table, tuple[Step, ...]]:
    """Make batches, each third with a dead letter in each partition that a redrive restores."""
    steps: list[Step] = []
    rows = []
    for number in range(batches):
        start = number * 10
        ranges = {"orders": {p: OffsetRange(start, start + 10) for p in range(partitions)}}
        entry = LedgerEntry(len(steps), None, 0, {keys.ATTEMPT: f"a{number}"})
        steps.append(Step(entry, keys.INGEST, None, None, ranges))
        if number % 3 == 2:
            rows += [
                {"topic": "orders", "partition": p, "offset": start, "attempt": f"a{number}"}
                for p in range(partitions)
            ]
            entry = LedgerEntry(len(steps), None, 0, {})
            restored = {("orders", p): np.array([start]) for p in range(partitions)}
            steps.append(Step(entry, keys.REDRIVE, None, None, {}, restored))
    order = [(name, "ascending") for name in ("topic", "partition", "offset")]
    return pa.Table.from_pylist(rows).sort_by(order).combine_chunks(), tuple(steps)


def count_resolution(batches: int, partitions: int) -> int:
    """Count the steps in which the dead letters of a ledger are resolved."""
    rows, steps = make_ledger(batches, partitions)
    nothing = resolve_dead_letters(np.array([], np.int64), np.array([], np.int64), Spans(), {})
    return count_steps(lambda: DeadLetterIndex(rows, nothing).with_steps(steps))


def test_twice_the_history_takes_twice_the_steps() -> None:
    assert count_resolution(120, 2) < 2.5 * count_resolution(60, 2)
