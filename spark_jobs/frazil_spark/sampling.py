"""Choose the records of a batch that are searched for unmapped fields.

This code travels to Spark's Python workers by value: it imports the standard library only.
"""

from collections.abc import Mapping

SHIFTS = (3, 7, 11)
"""Shifts that mix an offset before sampling, since transaction markers and alternating producers
repeat at fixed distances."""
SAMPLED_RECORDS = 250


def choose_sample_step(ranges: Mapping[str, Mapping[int, tuple[int, int]]]) -> int:
    """Return the step at which offsets are sampled: about `SAMPLED_RECORDS` of a batch."""
    pairs = (pair for parts in ranges.values() for pair in parts.values())
    return max(1, sum(end - start for start, end in pairs) // SAMPLED_RECORDS)


def write_sampled(step: int) -> str:
    """Write the SQL that is true for one of `step` records, by their column `offset`."""
    mixed = " ^ ".join(["offset", *(f"shiftright(offset, {bits})" for bits in SHIFTS)])
    return f"({mixed}) % {step} = 0"
