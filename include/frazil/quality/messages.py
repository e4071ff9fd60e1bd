"""Cut points of a suite as JSON, sent to the fast path's Python workers."""

from typing import TypeAlias

from frazil.messages import MessagePart

Point: TypeAlias = int | float | str


class CutPoints(MessagePart):
    """Constants by column that values and text lengths are compared with, and patterns for RE2.

    `values` are stored as the column's type holds them. `extremes` lists the columns whose smallest
    or largest value a metric needs, `sums` those whose sum it needs.
    """

    values: dict[str, tuple[Point, ...]] = {}
    lengths: dict[str, tuple[int, ...]] = {}
    patterns: dict[str, tuple[str, ...]] = {}
    extremes: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
