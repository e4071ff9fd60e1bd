"""Arrow values as 64-bit numbers that are the same exactly where the values are.

Whole columns at once: 64 bits per value instead of the value. Two different values meet by chance
once in 2^64 pairs; the numbers are no protection against somebody who looks for such a pair.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from frazil.value_pairs import MAX_SCALE, Elements, Entries, Fields, Form, Plain

Hashes = npt.NDArray[np.uint64]

_NULL = np.uint64(0x6E756C6C)
_STEP_NUMBER = 0x9E3779B97F4A7C15
_STEP = np.uint64(_STEP_NUMBER)
_DECIMAL = pa.decimal256(76, MAX_SCALE)


def mix(values: Hashes) -> Hashes:
    """Spread numbers over 64 bits (the finalizer of SplitMix64, Steele and others 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def _step(position: int) -> np.uint64:
    """Tell positions apart; a numpy scalar would warn where it wraps around."""
    return np.uint64(_STEP_NUMBER * position % 2**64)


def number_steps(count: int) -> list[np.uint64]:
    """Give each column a number of its own, so that two of them cannot swap values unseen."""
    return [_step(position + 1) for position in range(count)]


def hash_texts(texts: list[str]) -> Hashes:
    """Hash some texts."""
    return _hash_bytes(pa.array(texts, pa.string()))


def add_up(values: Hashes) -> int:
    """Add numbers modulo 2^64: the order of the rows does not matter."""
    return int(np.add.reduce(values, dtype=np.uint64)) if len(values) else 0


def hash_values(array: pa.Array, form: Form) -> Hashes:
    """Hash each value in the form that both sides have in common."""
    match form:
        case Fields(fields):
            hashes = np.zeros(len(array), np.uint64)
            for position, (name, inner) in enumerate(fields):
                child = hash_values(pc.struct_field(array, name), inner)
                hashes += mix(child + _step(position + 1))
        case Elements(element):
            hashes = _hash_segments(array.offsets, hash_values(_inner(array), element))
        case Entries(key, value):
            keys, values = (_slice(part, array.offsets) for part in (array.keys, array.items))
            pairs = mix(hash_values(keys, key)) + hash_values(values, value) * _STEP
            hashes = _sum_segments(array.offsets, mix(pairs))
        case Plain():
            hashes = _hash_plain(array, form)
    hashes = mix(hashes + _STEP)
    hashes[array.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _inner(array: pa.Array) -> pa.Array:
    return _slice(array.values, array.offsets)


def _slice(values: pa.Array, offsets: pa.Array) -> pa.Array:
    """Take the inner values of a slice; Arrow keeps those of the whole array."""
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return values.slice(first, last - first)


def _hash_segments(offsets: pa.Array, values: Hashes) -> Hashes:
    """Hash lists: each element with its position, then the length."""
    bounds = offsets.to_numpy().astype(np.int64)
    bounds = bounds - bounds[0]
    positions = np.arange(len(values)) - np.repeat(bounds[:-1], np.diff(bounds))
    placed = mix(values + _STEP * (positions + 1).astype(np.uint64))
    return _sum_segments(offsets, placed)


def _sum_segments(offsets: pa.Array, values: Hashes) -> Hashes:
    bounds = offsets.to_numpy().astype(np.int64)
    bounds = bounds - bounds[0]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    lengths = np.diff(bounds).astype(np.uint64)
    found: Hashes = mix(sums[bounds[1:]] - sums[bounds[:-1]] + lengths * _STEP)
    return found


def _hash_plain(array: pa.Array, form: Plain) -> Hashes:
    match form.kind:
        case "decimal":
            return _hash_decimals(array)
        case "floating":
            return _hash_floating(array)
        case "bytes":
            return _hash_bytes(array)
        case "instant":
            array = array.cast(pa.timestamp("us", array.type.tz))
        case "date":
            array = array.cast(pa.date32()).cast(pa.int32())
        case "time":
            array = array.cast(pa.time64("us"))
        case "boolean":
            array = array.cast(pa.int8())
        case "whole":
            pass
    return _to_numbers(array.cast(pa.int64()), 0).view(np.uint64)


def _to_numbers(array: pa.Array, filler: float) -> npt.NDArray[np.generic]:
    """Give Arrow's numbers as numpy's, writable; nulls become the filler."""
    found: npt.NDArray[np.generic] = array.fill_null(filler).to_numpy(zero_copy_only=False).copy()
    return found


def _hash_floating(array: pa.Array) -> Hashes:
    # By text: Arrow's own way from decimal to double is not always to the nearest one.
    exact = array.cast(pa.string()) if pa.types.is_decimal(array.type) else array
    safe = not pa.types.is_integer(array.type)
    values = _to_numbers(exact.cast(pa.float64(), safe=safe), 0.0).astype(np.float64)
    values[values == 0] = 0.0
    values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


def _hash_decimals(array: pa.Array) -> Hashes:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(MAX_SCALE, 0))
    wide = array.cast(_DECIMAL).fill_null(0)
    words = np.frombuffer(wide.buffers()[1], np.uint64).reshape(-1, 4)
    words = words[wide.offset : wide.offset + len(wide)]
    hashes = np.zeros(len(wide), np.uint64)
    for position in range(4):
        hashes += mix(words[:, position] + _step(position))
    return hashes


def _hash_bytes(array: pa.Array) -> Hashes:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    values = array.cast(pa.large_binary()).fill_null(b"").to_numpy(zero_copy_only=False)
    found: Hashes = hash_array(values, categorize=False).astype(np.uint64)
    return found
