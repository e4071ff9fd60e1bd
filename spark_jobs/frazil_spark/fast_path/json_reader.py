"""Read the JSON records that PyArrow decodes exactly as Spark does; leave all others to Spark.

This code travels to Spark's Python workers by value: it imports NumPy and PyArrow only.

PyArrow's JSON reader is fast, and laxer than RFC 8259 in a few places, each of which is checked
here. A record is read only if narrow tests show that every rule of docs/formats.md holds for it: an
object on one line, no escape that could be half a surrogate pair, no `NaN`, an instant in one of
two spellings, each value of its column's own JSON type. A record that is refused here is merely
slower, since Spark decodes it, so every test may be narrow.

Records are read as lines of one block. Each begins with `{` and ends with `}`: a line that closes
its object too late would meet the next line's `{` where JSON allows none. So every line holds at
least one object, and as many rows as lines means exactly one object on each.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

DOUBTFUL = "_frazil_doubtful"
MAX_SPLITS = 16
"""Most splits of a batch around refused records; Spark reads what is left after them."""

_SHORT_BYTES = 1000
_PIECE_BYTES = 65_536
_LOWER_CASE_BIT = np.uint8(0x20)
"""The bit by which a lower-case letter differs from its capital."""
_IS_BEFORE_ODD_POINT, _IS_AFTER_ODD_POINT = (
    np.isin(np.arange(256), np.frombuffer(each, np.uint8)) for each in (b'"-', b'"eE')
)
_LONGEST_BYTES = 50_000
_DEEPEST = 500
_SUSPECT = r"[\n\r]|NaN|Inf|\\u[dD]"
_LONG_NUMBER = "[0-9.eE+-]{500}"
_ODD_DECIMAL = (
    r"[0-9.][eE]-[0-9]+[\s,}\]\"]|\"[+]|\"-?[.]|[0-9][.][\"eE]"
    r"|\\u00(3[0-9]|[46]5|2[bBdDeE])"
)
"""In front of a decimal: PyArrow would read beyond the end of its table of powers of ten for a
negative exponent, and accepts texts such as `+5`, `.5` and `5.`, which are no decimals here."""

_WIDEST = 38
_DATE = "(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}"
_TIME = "[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_ROW_AT_FAULT = re.compile(r"in row (\d+)")

Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class FastPathRows:
    """Rows decoded without doubt: indexes in the batch, and values as the table's columns."""

    indexes: pa.Int64Array
    columns: tuple[pa.Array, ...]
    schema_ids: pa.Int32Array | None = None
    """Ids of the registered schemas that decoded the rows."""


class JsonReader:
    """Read JSON records for one set of columns."""

    def __init__(self, columns: pa.Schema, fields: Mapping[str, str] | None = None) -> None:
        """Set the table's columns, without `_kafka`.

        `fields` has the field of each column whose field has another name.
        """
        self.columns = columns
        self._fields = [(fields or {}).get(name, name) for name in columns.names]
        kinds = [reader_type(column.type) for column in columns]
        self._reader_schema = pa.schema(list(zip(self._fields, kinds, strict=True)))
        optional = [column.with_nullable(nullable=True) for column in columns]
        self._read = pa.schema([*optional, pa.field(DOUBTFUL, pa.bool_())])
        self._has_decimals = any(_holds_decimals(f.type) for f in columns)

    def read(self, values: pa.BinaryArray) -> FastPathRows:
        """Return the rows that are decoded without doubt."""
        candidates = find_candidates(values, has_decimals=self._has_decimals)
        indexes = pc.indices_nonzero(candidates).cast(pa.int64())
        texts = values if len(indexes) == len(values) else values.take(indexes)
        found = list(self._read_spans(texts))
        if not found:
            empty = [pa.array([], field.type) for field in self.columns]
            return FastPathRows(pa.array([], pa.int64()), tuple(empty))
        rows = np.concatenate([np.arange(*span) for span, _ in found])
        table = pa.concat_tables([table for _, table in found])
        *columns, doubtful = map(_join_chunks, table.columns)
        return keep_complete(
            indexes.take(pa.array(rows)), columns, self.columns, pc.invert(doubtful)
        )

    def _read_spans(self, texts: pa.BinaryArray) -> Iterator[tuple[Span, pa.Table]]:
        """Yield parsed spans of records, split around refused records."""
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

        Instants that are not in one of the two accepted spellings become null, marked doubtful.

        Raises:
            ArrowInvalid: at least one record is refused.
        """
        count = len(texts)
        whole = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), texts.cast(pa.string()))
        block = pc.binary_join(whole, "\n")[0].as_buffer()
        table = pj.read_json(
            pa.BufferReader(block),
            pj.ReadOptions(use_threads=False, block_size=block.size),
            pj.ParseOptions(
                explicit_schema=self._reader_schema, unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != count:
            message = "a line holds more than one record"
            raise pa.ArrowInvalid(message)
        columns = []
        doubtful = pa.array([False] * count)
        for field, name in zip(self.columns, self._fields, strict=True):
            values = table[name]
            if pa.types.is_temporal(field.type):
                misspelt = _find_misspelt(values, field.type)
                values, doubtful = pc.if_else(misspelt, None, values), pc.or_(doubtful, misspelt)
            for chunk in values.chunks:
                _validate_doubles(chunk)
            columns.append(values.cast(field.type))
        return pa.table([*columns, doubtful], schema=self._read)


def find_candidates(values: pa.BinaryArray, *, has_decimals: bool = True) -> pa.BooleanArray:
    """Mark the values that PyArrow may parse: objects without suspicious text."""
    lengths = pc.fill_null(pc.binary_length(values), 0)
    braced = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
    candidates = pc.and_(
        pc.fill_null(braced, False),  # noqa: FBT003 - PyArrow's own
        pc.less_equal(lengths, _LONGEST_BYTES),
    )
    suspicious = find_suspicious_bytes(_content(values))
    if suspicious.of_suspects:
        candidates = pc.and_not(candidates, _matches(values, _SUSPECT))
    if has_decimals and suspicious.of_decimals:
        candidates = pc.and_not(candidates, _matches(values, _ODD_DECIMAL))
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


def reader_type(column: pa.DataType) -> pa.DataType:
    """Return the type that PyArrow parses, without field ids and required marks.

    Instants and days are parsed as text. Decimals are parsed at the widest precision: the reader
    checks precision before it scales a decimal, the later cast checks it after.
    """
    if pa.types.is_temporal(column):
        return pa.string()
    if pa.types.is_decimal(column):
        return pa.decimal128(_WIDEST, column.scale)
    if pa.types.is_struct(column):
        return pa.struct([pa.field(f.name, reader_type(f.type)) for f in column.fields])
    if pa.types.is_list(column):
        return pa.list_(reader_type(column.value_type))
    return column


def _find_misspelt(values: pa.ChunkedArray, column: pa.DataType) -> pa.ChunkedArray:
    """Mark instants and days in a spelling that is not accepted here."""
    if pa.types.is_date(column):
        pattern = f"^{_DATE}$"
    else:
        pattern = f"^{_DATE}{_TIME}{'Z' if column.tz else ''}$"
    misspelt = pc.invert(pc.match_substring_regex(values, pattern))
    return pc.fill_null(misspelt, False)  # noqa: FBT003 - PyArrow's own


def _validate_doubles(values: pa.Array) -> None:
    """Refuse infinity, which 400 digits become, and negative zero: Spark reads `-0` without sign.

    Raises:
        ArrowInvalid: there is such a number.
    """
    if pa.types.is_floating(values.type):
        numbers = values.drop_null().to_numpy(zero_copy_only=False)
        if not np.isfinite(numbers).all() or np.signbit(numbers[numbers == 0]).any():
            message = "a number that is infinite or negative zero"
            raise pa.ArrowInvalid(message)
    if pa.types.is_struct(values.type) or pa.types.is_list(values.type):
        inner = values.flatten()
        for array in inner if isinstance(inner, list) else [inner]:
            _validate_doubles(array)


def _join_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def keep_complete(
    indexes: pa.Int64Array, columns: list[pa.Array], schema: pa.Schema, kept: pa.BooleanArray
) -> FastPathRows:
    """Return the rows whose required columns have values."""
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            kept = pc.and_(kept, column.is_valid())
    if kept.true_count == len(kept):
        return FastPathRows(indexes, tuple(columns))
    return FastPathRows(indexes.filter(kept), tuple(column.filter(kept) for column in columns))


def _split(begin: int, end: int, error: str) -> list[Span]:
    """Split around the refused record if PyArrow names it, else in halves; the first part last."""
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
    """Return the bytes of all values as one array, without a copy."""
    _, offsets, content = values.buffers()
    if content is None or not len(values):
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(content, np.uint8)[bounds[0] : bounds[-1]]


@dataclass(frozen=True)
class SuspiciousBytes:
    """Whether a batch has bytes that call for the regular expressions, which cost more."""

    of_suspects: bool
    of_decimals: bool


def find_suspicious_bytes(content: NDArray[np.uint8]) -> SuspiciousBytes:
    """Search all bytes for those that every match of the patterns contains."""
    suspects = decimals = False
    for begin in range(0, len(content), _PIECE_BYTES):
        # In pieces that fit the processor's cache, each with the first bytes of the next.
        piece = content[begin : begin + _PIECE_BYTES + 2]
        escapes = bool((piece == ord("\\")).any())
        suspects = suspects or (
            escapes
            or bool(piece.min() < ord(" "))
            or _holds_pair(piece, ord("a"), ord("N"))
            or _holds_pair(piece, ord("I"), ord("n"))
        )
        decimals = decimals or escapes or _holds_odd_decimal(piece)
    return SuspiciousBytes(of_suspects=suspects, of_decimals=decimals)


def _holds_odd_decimal(content: NDArray[np.uint8]) -> bool:
    """Return whether there may be a negative exponent, a leading plus, or a point without digits.

    Points are looked at one by one: they are few, and a pass over all bytes takes longer.
    """
    if _holds_pair(content | _LOWER_CASE_BIT, ord("e"), ord("-")):
        return True
    points = np.flatnonzero(content == ord("."))
    before, after = content[points - 1], content[np.minimum(points + 1, len(content) - 1)]
    return (
        _holds_pair(content, ord('"'), ord("+"))
        or bool(_IS_BEFORE_ODD_POINT[before].any())
        or bool(_IS_AFTER_ODD_POINT[after].any())
    )


def _holds_pair(content: NDArray[np.uint8], first: int, second: int) -> bool:
    return bool(((content[:-1] == first) & (content[1:] == second)).any())
