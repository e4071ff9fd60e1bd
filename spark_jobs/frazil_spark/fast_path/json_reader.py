"""Which records of an Arrow batch are rows beyond doubt, and which need Spark's decode.

This runs in Spark's Python workers, sent there by value: it imports PyArrow and nothing of ours.

PyArrow's JSON reader is fast and kinder than RFC 8259 in few places, all of which are looked for
here. A record is sure only if every rule of docs/formats.md holds for it by a narrow test: an
object on one line, no escape that could be half a surrogate pair, no `NaN`, an instant in one of
two spellings, each value of its column's own JSON type. Whatever is not sure goes on as raw
bytes; a record that is refused here is merely slower, so every test may be narrow.

Records are read as lines of one block. Each begins with `{` and ends with `}`: a line that closes
its object too late would meet the next line's `{` where JSON allows none, so every line holds at
least one object, and as many rows as lines means one object on each.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

ODD = "_frazil_odd"
MAX_SPLITS = 16
"""So often a batch may be split around records at fault; what is left then is not looked at."""

_SHORT_BYTES = 1000
_LOOK_BYTES = 65_536
_SMALL = np.uint8(0x20)
"""The bit that makes a small letter of a capital."""
_LONGEST_BYTES = 50_000
_DEEPEST = 500
_SUSPECT = r"[\n\r]|NaN|Inf|\\u[dD]"
_LONG_NUMBER = "[0-9.eE+-]{500}"
_NEGATIVE_EXPONENT = r"[0-9.][eE]-[0-9]+[\s,}\]\"]|\\u00(3[0-9]|[46]5|2[bBdDeE])"
"""Before a decimal: PyArrow looks up powers of ten for it beyond the end of their table."""

_WIDEST = 38
_DATE = "(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}"
_TIME = "[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_ROW_AT_FAULT = re.compile(r"in row (\d+)")

Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Sure:
    """The sure rows of a batch: their places in it, and their values as the table's columns."""

    places: pa.Int64Array
    columns: tuple[pa.Array, ...]
    schema_ids: pa.Int32Array | None = None
    """Of the registered schemas that decoded them."""


class SureReader:
    """Read sure rows for one set of columns."""

    def __init__(self, columns: pa.Schema) -> None:
        """Keep the table's columns, without `_kafka`."""
        self.columns = columns
        self._wire = pa.schema([pa.field(f.name, wire_type(f.type)) for f in columns])
        fields = [field.with_nullable(nullable=True) for field in columns]
        self._read = pa.schema([*fields, pa.field(ODD, pa.bool_())])
        self._has_decimals = any(_holds_decimals(f.type) for f in columns)

    def read(self, values: pa.BinaryArray) -> Sure:
        """Read what is sure among raw values."""
        candidates = find_candidates(values, has_decimals=self._has_decimals)
        places = pc.indices_nonzero(candidates).cast(pa.int64())
        texts = values if len(places) == len(values) else values.take(places)
        found = list(self._read_spans(texts))
        if not found:
            nothing = [pa.array([], field.type) for field in self.columns]
            return Sure(pa.array([], pa.int64()), tuple(nothing))
        rows = np.concatenate([np.arange(*span) for span, _ in found])
        table = pa.concat_tables([table for _, table in found])
        *columns, odd = map(_join_chunks, table.columns)
        return keep_complete(places.take(pa.array(rows)), columns, self.columns, pc.invert(odd))

    def _read_spans(self, texts: pa.BinaryArray) -> Iterator[tuple[Span, pa.Table]]:
        """Read spans of records, split around those at fault."""
        splits = 0
        waiting = [(0, len(texts))]
        while waiting and splits <= MAX_SPLITS:
            begin, end = waiting.pop()
            if begin == end:
                continue
            try:
                table = self._parse(texts.slice(begin, end - begin))
            except pa.ArrowInvalid as error:
                splits += 1
                waiting += _split(begin, end, str(error))
            else:
                yield (begin, end), table

    def _parse(self, texts: pa.BinaryArray) -> pa.Table:
        """Parse records, one per line.

        Texts of instants in another spelling than the sure one become null and are marked odd.

        Raises:
            ArrowInvalid: at least one record is not sure.
        """
        count = len(texts)
        whole = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), texts.cast(pa.string()))
        block = pc.binary_join(whole, "\n")[0].as_buffer()
        table = pj.read_json(
            pa.BufferReader(block),
            pj.ReadOptions(use_threads=False, block_size=block.size),
            pj.ParseOptions(explicit_schema=self._wire, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != count:
            message = "a line holds more than one record"
            raise pa.ArrowInvalid(message)
        columns = []
        odd = pa.array([False] * count)
        for field in self.columns:
            values = table[field.name]
            if pa.types.is_temporal(field.type):
                misspelt = _find_misspelt(values, field.type)
                values, odd = pc.if_else(misspelt, None, values), pc.or_(odd, misspelt)
            for chunk in values.chunks:
                _refuse_odd_doubles(chunk)
            columns.append(values.cast(field.type))
        return pa.table([*columns, odd], schema=self._read)


def find_candidates(values: pa.BinaryArray, *, has_decimals: bool = True) -> pa.BooleanArray:
    """Find the values that may be read at all: objects without anything to beware of."""
    lengths = pc.fill_null(pc.binary_length(values), 0)
    braced = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
    candidates = pc.and_(
        pc.fill_null(braced, False),  # noqa: FBT003 - PyArrow's own
        pc.less_equal(lengths, _LONGEST_BYTES),
    )
    signs = find_signs(_content(values))
    if signs.of_suspects:
        candidates = pc.and_not(candidates, _matches(values, _SUSPECT))
    if has_decimals and signs.of_exponents:
        candidates = pc.and_not(candidates, _matches(values, _NEGATIVE_EXPONENT))
    if (pc.max(lengths).as_py() or 0) > _SHORT_BYTES:
        openings = pc.add(pc.count_substring(values, b"["), pc.count_substring(values, b"{"))
        deep = pc.fill_null(pc.greater(openings, _DEEPEST), True)  # noqa: FBT003
        candidates = pc.and_not(candidates, pc.or_(deep, _matches(values, _LONG_NUMBER)))
    return candidates


def _holds_decimals(column: pa.DataType) -> bool:
    if pa.types.is_struct(column):
        return any(_holds_decimals(field.type) for field in column.fields)
    if pa.types.is_list(column):
        return _holds_decimals(column.value_type)
    return bool(pa.types.is_decimal(column))


def wire_type(column: pa.DataType) -> pa.DataType:
    """Choose what the reader is asked for, without field ids and required marks.

    Instants and days travel as text. Decimals travel with all digits there are: the reader checks
    a decimal's precision before it fills up the scale, the cast checks it after.
    """
    if pa.types.is_temporal(column):
        return pa.string()
    if pa.types.is_decimal(column):
        return pa.decimal128(_WIDEST, column.scale)
    if pa.types.is_struct(column):
        return pa.struct([pa.field(f.name, wire_type(f.type)) for f in column.fields])
    if pa.types.is_list(column):
        return pa.list_(wire_type(column.value_type))
    return column


def _find_misspelt(values: pa.ChunkedArray, column: pa.DataType) -> pa.ChunkedArray:
    """Mark the texts of instants and days that are not in the spelling that is sure."""
    if pa.types.is_date(column):
        pattern = f"^{_DATE}$"
    else:
        pattern = f"^{_DATE}{_TIME}{'Z' if column.tz else ''}$"
    misspelt = pc.invert(pc.match_substring_regex(values, pattern))
    return pc.fill_null(misspelt, False)  # noqa: FBT003 - PyArrow's own


def _refuse_odd_doubles(values: pa.Array) -> None:
    """Refuse infinity, which 400 digits are, and the negative zero: Spark reads `-0` without sign.

    Raises:
        ArrowInvalid: there is one.
    """
    if pa.types.is_floating(values.type):
        numbers = values.drop_null().to_numpy(zero_copy_only=False)
        if not np.isfinite(numbers).all() or np.signbit(numbers[numbers == 0]).any():
            message = "a number that is no plain double"
            raise pa.ArrowInvalid(message)
    if pa.types.is_struct(values.type) or pa.types.is_list(values.type):
        inner = values.flatten()
        for array in inner if isinstance(inner, list) else [inner]:
            _refuse_odd_doubles(array)


def _join_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def keep_complete(
    places: pa.Int64Array, columns: list[pa.Array], schema: pa.Schema, kept: pa.BooleanArray
) -> Sure:
    """Keep rows whose required columns are all there."""
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            kept = pc.and_(kept, column.is_valid())
    if kept.true_count == len(kept):
        return Sure(places, tuple(columns))
    return Sure(places.filter(kept), tuple(column.filter(kept) for column in columns))


def _split(begin: int, end: int, error: str) -> list[Span]:
    """Take out the record at fault if the reader names it, else halve; the first part last."""
    if end - begin == 1:
        return []
    named = _ROW_AT_FAULT.search(error)
    if named is not None and (fault := begin + int(named[1])) < end:
        return [(fault + 1, end), (begin, fault)]
    middle = (begin + end) // 2
    return [(middle, end), (begin, middle)]


def _matches(values: pa.BinaryArray, pattern: str) -> pa.BooleanArray:
    found = pc.match_substring_regex(values, pattern)
    return pc.fill_null(found, True)  # noqa: FBT003 - PyArrow's own


def _content(values: pa.BinaryArray) -> NDArray[np.uint8]:
    """Give all bytes of all values, to look into at once."""
    _, offsets, content = values.buffers()
    if content is None or not len(values):
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]


@dataclass(frozen=True)
class Signs:
    """Whether anything in a batch calls for a closer look, by patterns that cost more."""

    of_suspects: bool
    of_exponents: bool


def find_signs(content: NDArray[np.uint8]) -> Signs:
    """Look at all bytes for what every match of the patterns has in it."""
    suspects = exponents = False
    for begin in range(0, len(content), _LOOK_BYTES):
        # In pieces that stay in the processor's cache, each with the next one's first byte.
        piece = content[begin : begin + _LOOK_BYTES + 1]
        escapes = bool((piece == ord("\\")).any())
        suspects = suspects or (
            escapes
            or bool(piece.min() < ord(" "))
            or _holds_pair(piece, ord("a"), ord("N"))
            or _holds_pair(piece, ord("I"), ord("n"))
        )
        exponents = exponents or escapes or _holds_pair(piece | _SMALL, ord("e"), ord("-"))
    return Signs(of_suspects=suspects, of_exponents=exponents)


def _holds_pair(content: NDArray[np.uint8], first: int, second: int) -> bool:
    return bool(((content[:-1] == first) & (content[1:] == second)).any())
