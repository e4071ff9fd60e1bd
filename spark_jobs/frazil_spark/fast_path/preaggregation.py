"""Sure rows that every counter counts alike: one of them is shown to Spark, for all of them.

This runs in Spark's Python workers, sent there by value: it imports NumPy and PyArrow and nothing
of ours. How rows are told apart is said in `frazil.quality.preaggregation`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Codes: TypeAlias = NDArray[np.int64]
Point: TypeAlias = int | float | str

_ROOM = 2**62
"""So many combinations of codes fit into one number."""

TOTAL, MAGNITUDE = "_frazil_total_", "_frazil_magnitude_"
"""Before the name of a column: the sum of its values, and that of their absolute values."""

_UNLIKE = "[^ -~]"
"""In a text: what is not printable ASCII."""


@dataclass(frozen=True)
class AlikeOrder:
    """Landmarks by column, and those of the records' timestamps in microseconds."""

    values: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extremes: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    timestamps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Weighed:
    """For each row how many it stands for, and whether it holds an extreme value.

    `sums` has the sums of all that it stands for, by name, as `name_sums` names them.
    """

    weights: Codes
    marks: NDArray[np.bool_]
    sums: Mapping[str, NDArray[np.float64]]


def name_sums(column: str) -> tuple[str, str]:
    """Name both sums of a column."""
    return TOTAL + column, MAGNITUDE + column


def weigh(
    order: AlikeOrder,
    shown: Mapping[str, pa.Array],
    timestamps: pa.TimestampArray,
    kinds: Sequence[pa.Array],
) -> Weighed:
    """Weigh rows: one of those that stand alike weighs as many as they are, the others nothing.

    Rows that differ in one of `kinds` never stand alike.
    """
    marks = np.zeros(len(timestamps), np.bool_)
    _mark_extremes(timestamps, marks)
    for name in order.extremes:
        _mark_extremes(shown[name], marks)
    codes = [*_list_codes(order, shown), _place(timestamps, order.timestamps)]
    for kind in kinds:
        encoded = kind.dictionary_encode()
        count = len(encoded.dictionary)
        codes.append((_to_numpy(encoded.indices, count), count + 1))
    _, first, alike, counts = np.unique(
        _join(codes), return_index=True, return_inverse=True, return_counts=True
    )
    weights = np.zeros(len(timestamps), np.int64)
    weights[first] = counts
    sums = {}
    for name in order.sums:
        values = _to_doubles(shown[name])
        for sum_name, of in zip(name_sums(name), (values, np.abs(values)), strict=True):
            sums[sum_name] = np.zeros(len(timestamps))
            sums[sum_name][first] = np.bincount(alike, of, len(first))
    return Weighed(weights, marks, sums)


def _list_codes(order: AlikeOrder, shown: Mapping[str, pa.Array]) -> Iterator[tuple[Codes, int]]:
    for name, column in shown.items():
        yield _place(column, order.values.get(name, ()))
        if name in order.lengths:
            yield _place(pc.utf8_length(column), order.lengths[name])
        if name in order.patterns:
            yield from _search(column, order.patterns[name])


def _place(column: pa.Array, points: tuple[Point, ...]) -> tuple[Codes, int]:
    """Say by a code how each value stands to the points, and how many codes there are."""
    if pa.types.is_string(column.type):
        of_text = _to_numpy(pc.index_in(column, value_set=pa.array(points, pa.string())), -1) + 1
        codes, count = of_text, len(points) + 1
    else:
        numbers = _to_numbers(column)
        held = np.array(points, numbers.dtype)
        codes = np.searchsorted(held, numbers, "left") + np.searchsorted(held, numbers, "right")
        count = 2 * len(points) + 1
        if pa.types.is_boolean(column.type):
            codes, count = numbers, 2
    if column.null_count or pa.types.is_floating(column.type):
        codes = np.where(_is_missing(column), count, codes)
    return codes, count + 1


def _search(column: pa.StringArray, patterns: tuple[str, ...]) -> Iterator[tuple[Codes, int]]:
    """Say which texts each pattern matches; a text that engines may read apart is like no other."""
    for pattern in patterns:
        yield _find(column, pattern).astype(np.int64), 2
    unlike = np.flatnonzero(_find(column, _UNLIKE))
    if len(unlike):
        codes = np.zeros(len(column), np.int64)
        codes[unlike] = np.arange(len(unlike)) + 1
        yield codes, len(unlike) + 1


def _find(column: pa.StringArray, pattern: str) -> NDArray[np.bool_]:
    return _to_numpy(pc.match_substring_regex(column, pattern).fill_null(False))  # noqa: FBT003


def _is_missing(column: pa.Array) -> NDArray[np.bool_]:
    """Say where no value is; NaN is none, as for the metrics."""
    return _to_numpy(column.is_null(nan_is_null=True))


def _to_numbers(column: pa.Array) -> NDArray[Any]:
    """Read values as numbers in their own order; values without one are all zero."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _to_numpy(column.cast(pa.float64()), 0.0)
    if pa.types.is_decimal(kind):
        # Of at most 18 digits: the lower of two words is the number.
        words = np.frombuffer(column.buffers()[1], np.int64)
        return words[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    if pa.types.is_date(kind):
        column = column.cast(pa.int32())
    if pa.types.is_integer(column.type) or pa.types.is_timestamp(kind) or pa.types.is_boolean(kind):
        return _to_numpy(column.cast(pa.int64()), 0)
    return np.zeros(len(column), np.int64)


def _to_doubles(column: pa.Array) -> NDArray[np.float64]:
    """Read values as doubles; what is missing adds nothing."""
    scale = column.type.scale if pa.types.is_decimal(column.type) else 0
    return np.where(_is_missing(column), 0.0, _to_numbers(column) / 10.0**scale)


def _to_numpy(column: pa.Array, missing: float | None = None) -> NDArray[Any]:
    filled = column if missing is None or not column.null_count else column.fill_null(missing)
    values: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _mark_extremes(column: pa.Array, marks: NDArray[np.bool_]) -> None:
    """Mark a row with the smallest and one with the largest value, if any is there."""
    there = np.flatnonzero(~_is_missing(column))
    if len(there):
        numbers = _to_numbers(column)[there]
        marks[there[[numbers.argmin(), numbers.argmax()]]] = True


def _join(codes: list[tuple[Codes, int]]) -> Codes:
    """Make one number of several codes."""
    joined, room = codes[0][0].astype(np.int64), codes[0][1]
    for code, count in codes[1:]:
        if room * count > _ROOM:
            found, joined = np.unique(joined, return_inverse=True)
            room = len(found)
        joined, room = joined * count + code, room * count
    return joined
