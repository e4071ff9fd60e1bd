"""The audit's rules, without a table: chains of states, owners of offsets, claims of batches."""

import numpy as np
import pytest
from support.log_lake import TOPIC, state_of

from frazil.ingest.dead_letters import select_open
from frazil.ledger.coordinates import NO_OFFSETS, Offsets
from frazil.ledger.history import Span, Spans, Step, list_spans
from frazil.ledger.offsets import OffsetRange, Ranges
from frazil.ledger.recovery_point import LedgerEntry, keys
from frazil.ledger.state import StreamState
from frazil.observability.audit_chain import check_backfills, check_chain
from frazil.observability.audit_rules import (
    BatchClaim,
    PartitionView,
    Tally,
    judge_batches,
    judge_partition,
)


def step_of(
    kind: str, before: StreamState | None, after: StreamState | None, ranges: Ranges
) -> Step:
    batch = {keys.BATCH_ID: after.batch} if after else {}
    return Step(LedgerEntry(7, 6, 0, batch), kind, before, after, ranges)


def moved(start: int, end: int) -> Ranges:
    return {TOPIC: {0: OffsetRange(start, end)}}


AT_5 = state_of(epoch=5, offsets=(100,))


@pytest.mark.parametrize(
    ("step", "problems"),
    [
        pytest.param(
            step_of(keys.BOOTSTRAP, None, state_of(0, (0,)), {}), [], id="a stream begins"
        ),
        pytest.param(
            step_of(keys.INGEST, AT_5, state_of(6, (150,)), moved(100, 150)), [], id="a batch joins"
        ),
        pytest.param(
            step_of(keys.INGEST, AT_5, state_of(6, (150,)), moved(110, 150)),
            [("I3", "gap: orders:0:100-110 is in no range")],
            id="a batch leaves a gap",
        ),
        pytest.param(
            step_of(keys.INGEST, AT_5, state_of(6, (150,)), moved(90, 150)),
            [("I3", "overlap: orders:0:90-100 was published before")],
            id="a batch overlaps the one before",
        ),
        pytest.param(
            step_of(keys.INGEST, AT_5, state_of(6, (160,)), moved(100, 150)),
            [("I3", "the rows end at 150, the state at 160")],
            id="a state runs ahead of its rows",
        ),
        pytest.param(
            step_of(keys.INGEST, AT_5, state_of(7, (150,)), moved(100, 150)),
            [("I2", "changes the epoch from 5 to 7")],
            id="an epoch is left out",
        ),
        pytest.param(
            step_of(keys.INGEST, AT_5, None, moved(100, 150)),
            [("I4", "publishes rows without advancing offsets")],
            id="rows move without offsets",
        ),
        pytest.param(
            step_of(keys.GAP, AT_5, state_of(6, (150,)), moved(100, 150)), [], id="a recorded gap"
        ),
        pytest.param(
            step_of(keys.GAP, AT_5, state_of(9, (150,)), {}),
            [("I3", "orders:0:100-150 is lost but not recorded")],
            id="a gap that does not say what it lost",
        ),
        pytest.param(
            step_of(keys.GAP, AT_5, state_of(6, (150,), topic_id="id-2"), moved(0, 150)),
            [],
            id="a gap of a topic created again",
        ),
        pytest.param(
            step_of(keys.GAP, AT_5, state_of(6, (150,), topic_id="id-2"), moved(100, 150)),
            [],
            id="such a gap as 0.1.0 recorded it",
        ),
        pytest.param(
            step_of(keys.GAP, AT_5, state_of(6, (40,), topic_id="id-2"), moved(10, 40)),
            [("I3", "orders:0:0-40 is lost but not recorded")],
            id="a gap of a topic created again that says too little",
        ),
        pytest.param(step_of(keys.CARRY, AT_5, AT_5, {}), [], id="a carry repeats the state"),
        pytest.param(
            step_of(keys.CARRY, AT_5, state_of(6, (100,)), {}),
            [("I2", "changes the epoch from 5 to 6")],
            id="a carry raises the epoch",
        ),
        pytest.param(
            step_of(keys.REWIND, AT_5, state_of(9, (100,)), {}), [], id="a rewind skips epochs"
        ),
        pytest.param(
            step_of(keys.REWIND, AT_5, state_of(9, (120,)), {}),
            [("I3", "moves from 100 to 120 without rows")],
            id="a rewind moves ahead",
        ),
        pytest.param(
            step_of(keys.BOOTSTRAP, AT_5, state_of(6, (0,)), {}),
            [
                ("I2", "begins the stream a second time"),
                ("I3", "starts over at 0 below the read offset 100"),
            ],
            id="a stream begins twice",
        ),
        pytest.param(
            step_of("replay", AT_5, state_of(5, (100,)), moved(10, 20)),
            [("I4", "has a state, which its kind must not have")],
            id="a replay moves the state",
        ),
    ],
)
def test_the_chain_of_states_is_judged_step_by_step(
    step: Step, problems: list[tuple[str, str]]
) -> None:
    findings = check_chain((step,))

    assert [finding.invariant for finding in findings] == [invariant for invariant, _ in problems]
    for finding, (_, words) in zip(findings, problems, strict=True):
        assert words in finding.text


def test_a_backfill_of_what_was_published_is_found() -> None:
    begun = step_of(keys.BOOTSTRAP, None, state_of(0, (100,)), {})
    first = step_of(keys.BACKFILL, begun.after, None, moved(40, 100))
    second = step_of(keys.BACKFILL, begun.after, None, moved(0, 40))

    assert list(check_backfills((begun, first, second))) == []
    overlapping = step_of(keys.BACKFILL, begun.after, None, moved(0, 41))
    (finding,) = check_backfills((begun, first, overlapping))
    assert finding.invariant == "I3"
    assert "orders:0:0-41 was published before" in finding.text


def test_rows_below_an_adopted_offset_are_not_judged() -> None:
    adopted = step_of("adopt", None, state_of(1, (500,)), {})
    ingest = step_of(keys.INGEST, adopted.after, state_of(2, (600,)), moved(500, 600))

    spans = list_spans((adopted, ingest))[TOPIC, 0]

    assert spans.floor == 500
    assert [(span.start, span.end) for span in spans.current] == [(500, 600)]


def test_a_topic_created_again_starts_another_generation_of_offsets() -> None:
    old = step_of(keys.INGEST, state_of(4, (0,)), AT_5, moved(0, 100))
    gap = step_of(keys.GAP, AT_5, state_of(6, (100,), topic_id="id-2"), {})
    new = step_of(keys.INGEST, gap.after, state_of(7, (150,), topic_id="id-2"), moved(100, 150))

    spans = list_spans((old, gap, new))[TOPIC, 0]

    assert [(span.start, span.end) for span in spans.earlier] == [(0, 100)]
    assert [(span.start, span.end) for span in spans.current] == [(100, 150)]


def offsets_of(*offsets: int) -> Offsets:
    return np.array(offsets, dtype=np.int64)


def test_rows_from_before_the_ledger_are_not_judged() -> None:
    spans = Spans(current=(Span(500, 503, 0),), floor=500)
    rows = offsets_of(7, 7, 400, 500, 501, 502, 600)

    findings = list(
        judge_partition(PartitionView((TOPIC, 0), spans, rows, NO_OFFSETS, None), Tally())
    )

    assert [finding.coordinates for finding in findings] == [((TOPIC, 0, 600),)]


def test_a_letter_counts_by_the_last_attempt_that_covers_it() -> None:
    spans = Spans(current=(Span(0, 10, 0), Span(0, 5, 1)))
    letters = {"first": offsets_of(2, 7), "replay": offsets_of(3), "abandoned": offsets_of(8)}

    counting, _ = select_open(letters, spans, {0: "first", 1: "replay"}, {})

    assert counting.tolist() == [3, 7]


def claim_of(read: int, written: int, quarantined: int, counts: tuple[int, int]) -> BatchClaim:
    return BatchClaim(0, "batch b", read, written, quarantined, 0, {(TOPIC, 0): counts})


@pytest.mark.parametrize(
    ("claim", "problems"),
    [
        pytest.param(claim_of(10, 9, 1, (10, 9)), [], id="everything adds up"),
        pytest.param(
            claim_of(11, 9, 1, (10, 9)),
            ["read 11 records and accounts for 10"],
            id="a record is read and not accounted for",
        ),
        pytest.param(
            claim_of(10, 8, 2, (10, 9)),
            ["wrote 8 rows, the table has 9", "quarantined 2 records, 1 dead letter exist"],
            id="a letter is claimed that does not count",
        ),
        pytest.param(
            claim_of(10, 9, 1, (9, 9)),
            ["orders:0: the ledger has 9 read and 9 good records, Kafka delivers 10"],
            id="a partition's own counts are wrong",
        ),
    ],
)
def test_what_a_batch_says_of_itself_is_counted_again(
    claim: BatchClaim, problems: list[str]
) -> None:
    tally = Tally()
    tally.rows[0][TOPIC, 0], tally.dead_letters[0][TOPIC, 0], tally.delivered[0][TOPIC, 0] = (
        9,
        1,
        10,
    )

    texts = [finding.text for finding in judge_batches([claim], tally)]

    assert len(texts) == len(problems)
    assert all(words in text for words, text in zip(problems, texts, strict=True))
