"""Group written rows that no metric can tell apart; Spark counts one row per group, by its size.

This code travels to Spark's Python workers by value: it imports NumPy and PyArrow only. The cut
points that define the groups come from `frazil.quality.preaggregation`.
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

_MAX_COMBINATIONS = 2**62
"""Combinations of codes that fit into one 64-bit number."""

TOTAL, MAGNITUDE = "_frazil_total_", "_frazil_magnitude_"
"""Prefixes of a column's name: the sum of its values, and the sum of their absolute values."""

_NOT_PRINTABLE_ASCII = "[^ -~]"
"""Texts with such a character: regex engines may disagree about them."""


@dataclass(frozen=True)
class PreaggregationSpec:
    """Cut points and patterns by column; `timestamps` cuts record timestamps, in microseconds."""

    values: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    patterns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extremes: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    timestamps: tuple[int, ...] = ()


@dataclass(frozen=True)
class WeightedGroups:
    """The weight of each row: its group's size for the first row of a group, 0 for the others.

    `is_extreme` marks rows with a smallest or largest value. `sums` holds the sums of each group at
    its first row, by the names of `name_sums`.
    """

    weights: Codes
    is_extreme: NDArray[np.bool_]
    sums: Mapping[str, NDArray[np.float64]]


def name_sums(column: str) -> tuple[str, str]:
    """Return the names of a column's two sums."""
    return TOTAL + column, MAGNITUDE + column


def preaggregate(
    spec: PreaggregationSpec,
    columns: Mapping[str, pa.Array],
    timestamps: pa.TimestampArray,
    group_by: Sequence[pa.Array],
) -> WeightedGroups:
    """Group rows by their intervals between cut points, matched patterns and the `group_by` arrays.

    Every metric counts all rows of a group the same.
    """
    is_extreme = np.zeros(len(timestamps), np.bool_)
    _mark_extremes(timestamps, is_extreme)
    for name in spec.extremes:
        _mark_extremes(columns[name], is_extreme)
    codes = [*_list_codes(spec, columns), _locate(timestamps, spec.timestamps)]
    for array in group_by:
        encoded = array.dictionary_encode()
        count = len(encoded.dictionary)
        codes.append((_to_numpy(encoded.indices, count), count + 1))
    _, first, group_ids, counts = np.unique(
        _combine(codes), return_index=True, return_inverse=True, return_counts=True
    )
    weights = np.zeros(len(timestamps), np.int64)
    weights[first] = counts
    sums = {}
    for name in spec.sums:
        values = _to_doubles(columns[name])
        for sum_name, of in zip(name_sums(name), (values, np.abs(values)), strict=True):
            sums[sum_name] = np.zeros(len(timestamps))
            sums[sum_name][first] = np.bincount(group_ids, of, len(first))
    return WeightedGroups(weights, is_extreme, sums)


def _list_codes(
    spec: PreaggregationSpec, columns: Mapping[str, pa.Array]
) -> Iterator[tuple[Codes, int]]:
    for name, column in columns.items():
        yield _locate(column, spec.values.get(name, ()))
        if name in spec.lengths:
            yield _locate(pc.utf8_length(column), spec.lengths[name])
        if name in spec.patterns:
            yield from _search(column, spec.patterns[name])


def _locate(column: pa.Array, points: tuple[Point, ...]) -> tuple[Codes, int]:
    """Return a code for each value, below, at or above each point, and the number of codes."""
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
    """Yield codes of the texts that match; each text with non-ASCII characters gets its own."""
    for pattern in patterns:
        yield _find(column, pattern).astype(np.int64), 2
    alone = np.flatnonzero(_find(column, _NOT_PRINTABLE_ASCII))
    if len(alone):
        codes = np.zeros(len(column), np.int64)
        codes[alone] = np.arange(len(alone)) + 1
        yield codes, len(alone) + 1


def _find(column: pa.StringArray, pattern: str) -> NDArray[np.bool_]:
    return _to_numpy(pc.match_substring_regex(column, pattern).fill_null(False))  # noqa: FBT003


def _is_missing(column: pa.Array) -> NDArray[np.bool_]:
    """Mark missing values; NaN is missing, as for the metrics."""
    return _to_numpy(column.is_null(nan_is_null=True))


def _to_numbers(column: pa.Array) -> NDArray[Any]:
    """Convert values to numbers of the same order; types without an order become 0."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _to_numpy(column.cast(pa.float64()), 0.0)
    if pa.types.is_decimal(kind):
        # At most 18 digits: the lower of the two words is the number.
        words = np.frombuffer(column.buffers()[1], np.int64)
        return words[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    if pa.types.is_date(kind):
        column = column.cast(pa.int32())
    if pa.types.is_integer(column.type) or pa.types.is_timestamp(kind) or pa.types.is_boolean(kind):
        return _to_numpy(column.cast(pa.int64()), 0)
    return np.zeros(len(column), np.int64)


def _to_doubles(column: pa.Array) -> NDArray[np.float64]:
    """Convert values to doubles, missing ones to 0."""
    scale = column.type.scale if pa.types.is_decimal(column.type) else 0
    return np.where(_is_missing(column), 0.0, _to_numbers(column) / 10.0**scale)


def _to_numpy(column: pa.Array, missing: float | None = None) -> NDArray[Any]:
    filled = column if missing is None or not column.null_count else column.fill_null(missing)
    values: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return values


def _mark_extremes(column: pa.Array, is_extreme: NDArray[np.bool_]) -> None:
    """Mark a row with the smallest and one with the largest value, if there is a value."""
    present = np.flatnonzero(~_is_missing(column))
    if len(present):
        numbers = _to_numbers(column)[present]
        is_extreme[present[[numbers.argmin(), numbers.argmax()]]] = True


def _combine(codes: list[tuple[Codes, int]]) -> Codes:
    """Combine several codes into one number per row."""
    joined, room = codes[0][0].astype(np.int64), codes[0][1]
    for code, count in codes[1:]:
        if room * count > _MAX_COMBINATIONS:
            found, joined = np.unique(joined, return_inverse=True)
            room = len(found)
        joined, room = joined * count + code, room * count
    return joined
