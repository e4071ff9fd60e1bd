"""Constants of a suite as JSON, as the fast path's Python workers receive them."""

from typing import TypeAlias

from frazil.messages import MessagePart

Point: TypeAlias = int | float | str


class CutPoints(MessagePart):
    """Constants by column: of values, as the column's type holds them, and of texts' lengths.

    `patterns` are for RE2, by column too. `extremes` names the columns whose smallest and largest
    value is asked for, `sums` those whose sum is.
    """

    values: dict[str, tuple[Point, ...]] = {}
    lengths: dict[str, tuple[int, ...]] = {}
    patterns: dict[str, tuple[str, ...]] = {}
    extremes: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
