"""Constants of a suite as JSON, as the fast path's Python workers receive them."""

from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

Point: TypeAlias = int | float | str


class CutPoints(BaseModel):
    """Constants by column: of values, as the column's type holds them, and of texts' lengths.

    `patterns` are for RE2, by column too. `extremes` names the columns whose smallest and largest
    value is asked for, `sums` those whose sum is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: dict[str, tuple[Point, ...]] = {}
    lengths: dict[str, tuple[int, ...]] = {}
    patterns: dict[str, tuple[str, ...]] = {}
    extremes: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
