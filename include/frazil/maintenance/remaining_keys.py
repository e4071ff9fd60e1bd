"""Find data that may hold an erased key after an erasure: equality deletes and record headers.

An equality delete file of another engine lists the key values of rows that it hides in older
files. Frazil does not rewrite such files, and removing one would make its rows visible again.
When a key changes, Debezium writes the other key into a header of the event.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    UUIDType,
)

from frazil.errors import hide_partition_values
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.data_files import COORDINATE, list_equality_deletes, read_column, read_files
from frazil.iceberg.live_files import FilePlanner
from frazil.ledger import keys
from frazil.ledger.offsets import describe_offset
from frazil.maintenance.erasure_keys import (
    RAW_KEY,
    ErasedKeys,
    KeyValue,
    read_versions,
    select_rows_by_key,
)
from frazil.messages import count_noun
from frazil.schemas.merge import find_earlier_columns
from frazil.streams.models import Stream

_HEADERS = f"{keys.KAFKA_COLUMN}.headers"
_OTHER_KEYS = ("__debezium.oldkey", "__debezium.newkey")
_NUMBER = re.compile(r"-?[0-9]+(?:[.][0-9]+)?")
_WHOLE = r"-?[0-9]+"
_FORMS: Mapping[type[IcebergType], str] = {
    IntegerType: _WHOLE,
    LongType: _WHOLE,
    DateType: _WHOLE,
    DecimalType: r"-?[0-9]+(?:[.][0-9]+)?(?:[eE][+-]?[0-9]{1,2})?",
    BooleanType: "true|false",
    StringType: "(?s:.*)",
    UUIDType: "[0-9A-Fa-f-]{36}",
}
"""The texts of a header that have one meaning for a column; others may be a key in another form."""
_CLOCK = re.compile(r"[+-]?[0-9]{4,}-[0-9]{2}-[0-9]{2}|-?[0-9]{2,}:[0-9]{2}:")
"""Days and times in a column of text: a header has numbers of several units instead."""
_SHOWN = 3


def describe_equality_deletes(
    table: Table, by_row: ErasedKeys, erased: ErasedKeys, stream: str
) -> Iterator[str]:
    """Describe the equality delete files that hold a key, and what removes them.

    `by_row` are the keys by which rows are selected.

    Raises:
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    name = ".".join(table.name())
    by_raw = erased.restrict({RAW_KEY})
    with translated_errors(f"reading equality deletes of {name}"):
        found = [
            hide_partition_values(file.file_path)
            for file in list_equality_deletes(table, table.current_snapshot())
            if any(_may_hold(table, file, each) for each in (by_row, by_raw))
        ]
    if not found:
        return
    files = count_noun(len(found), "equality delete file")
    shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
    yield (
        f"{name}: {files} of another engine may hold the key, and an erasure leaves them: {shown}; "
        f"`frazil maintain {stream} --only compact --rewrite-all --no-dry-run` applies and removes "
        "them, then erase again"
    )


def _may_hold(table: Table, file: DataFile, erased: ErasedKeys) -> bool:
    """Return whether a file's own values are those of a key; True if it cannot be read.

    A file that has some columns of a key only holds it where these have its values.
    """
    schema = table.schema()
    ids = {schema.find_column_name(number) for number in file.equality_ids or []}
    names = {name for name in ids if name}
    columns = {*erased.by_column, *(erased.whole[0] if erased.whole else ())}
    held = {
        c for c in columns if names & {c, *find_earlier_columns(table.schemas(), schema, c).proven}
    }
    if not held or file.file_format != FileFormat.PARQUET:
        return bool(held)
    wanted = select_rows_by_key(table, erased.restrict(held), names)
    rows = read_files(table, schema.select(*wanted.columns), [FileScanTask(file)])
    return bool(wanted.flag(rows).any())


class _Sent(str):
    """The text of a number of JSON."""

    __slots__ = ()


@dataclass(frozen=True)
class _Column:
    """A column of the erased keys: the field of the source, and the texts that headers have."""

    source: str
    kind: IcebergType
    values: Sequence[KeyValue] = field(repr=False)

    @cached_property
    def texts(self) -> Sequence[str]:
        """Return the text of each value."""
        given = [value.value for value in self.values]
        if isinstance(self.kind, UUIDType):
            given = [UUID(bytes=each) for each in given]
        return [self._write(str(each)) for each in given]

    @cached_property
    def _encoded(self) -> Mapping[str, str]:
        """Return the texts of numbers by the Base64 in which a header may have their digits."""
        numbers = [text for text in self.texts if _NUMBER.fullmatch(text)]
        return {_encode(text): text for text in numbers if isinstance(self.kind, StringType)}

    @cached_property
    def _is_clear(self) -> bool:
        return type(self.kind) in _FORMS and not any(map(_CLOCK.match, self.texts))

    def read(self, sent: object) -> str | None:
        """Return the text of a field of a header; None if it may be a value in another form."""
        text = str(sent).lower() if isinstance(sent, bool) else sent
        if not self._is_clear or not isinstance(text, str):
            return None
        is_written_so = re.fullmatch(_FORMS[type(self.kind)], text) is not None
        return self._write(self._encoded.get(text, text)) if is_written_so else None

    def _write(self, text: str) -> str:
        match self.kind:
            case DecimalType():
                return f"{Decimal(text).normalize():f}"
            case BooleanType() | UUIDType():
                return text.lower()
        return text


def _encode(number: str) -> str:
    """Return the digits of a number as Kafka Connect's JSON has a decimal."""
    unscaled = int(number.replace(".", ""))
    size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


class _HeaderSearch:
    """Compares the keys in headers with those that are erased."""

    def __init__(
        self, table: Table, stream: Stream, by_row: ErasedKeys, erased: ErasedKeys
    ) -> None:
        """Read the keys as values of the columns of a table of the stream's rows."""
        fields = {column.name: column.field for column in stream.parsed_columns}

        def read(column: str, texts: Sequence[str]) -> _Column:
            found = [each for each in read_versions(table, column, texts)[0][1] if each]
            kind = table.schema().find_type(column)
            return _Column(fields.get(column, column), kind, [value for _, value in found])

        self._raw = erased.raw
        self._in_all = by_row.in_all
        named = {c: texts for c, texts in by_row.by_column.items() if c != RAW_KEY}
        self._alone = [(each, {*each.texts}) for each in (read(*pair) for pair in named.items())]
        names = [*by_row.whole[0]] if by_row.whole else []
        self._joint = [read(name, [key[name] for key in by_row.whole]) for name in names]
        self._whole = {*zip(*(each.texts for each in self._joint), strict=True)}

    def compare(self, header: bytes | None) -> bool | None:
        """Return whether a header holds an erased key; None if that cannot be told."""
        if header in self._raw:
            return True
        key = _read_key(header or b"")
        if key is None:
            return None if header else False
        found: list[bool | None] = []
        if self._joint:
            sent = tuple(each.read(key.get(each.source)) for each in self._joint)
            found.append(None if None in sent else sent in self._whole)
        if self._alone:
            absent = None if self._in_all else False
            each = [
                _is_among(column.read(key[column.source]), texts)
                if column.source in key
                else absent
                for column, texts in self._alone
            ]
            found.append(_join_all(each) if self._in_all else _join_any(each))
        return _join_any(found)


def _is_among(text: str | None, texts: set[str]) -> bool | None:
    return None if text is None else text in texts


def _join_all(found: Sequence[bool | None]) -> bool | None:
    return False if False in found else None if None in found else True


def _join_any(found: Sequence[bool | None]) -> bool | None:
    return True if True in found else None if None in found else False


def _read_key(header: bytes) -> Mapping[str, object] | None:
    """Return the fields of a key in a header; None if they cannot be read."""
    try:
        found = json.loads(header, parse_int=_Sent, parse_float=_Sent)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    return found if isinstance(found, dict) else None


def describe_other_keys(
    tables: Sequence[Table], stream: Stream, by_row: ErasedKeys, erased: ErasedKeys
) -> Iterator[str]:
    """Describe the rows of other keys whose headers hold an erased key, and what removes them.

    The first table has the stream's rows. Rows that are erased themselves do not count.

    Raises:
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    if stream.value.change_events is None or not tables:
        return
    search = _HeaderSearch(tables[0], stream, by_row, erased)
    for table in tables:
        if _HEADERS not in table.schema().column_names:
            continue
        with translated_errors(f"reading headers of {'.'.join(table.name())}"):
            held, unclear = _find_other_keys(table, search, by_row, erased)
        yield from _describe_held(table, stream.stream, held, "an erased key")
        yield from _describe_held(table, stream.stream, unclear, "what may be an erased key")


def _find_other_keys(
    table: Table, search: _HeaderSearch, by_row: ErasedKeys, erased: ErasedKeys
) -> tuple[list[str], list[str]]:
    """Return the places of rows that hold an erased key, and of those where that is not clear."""
    names = {*table.schema().column_names}
    has_columns = {*by_row.by_column, *(by_row.whole[0] if by_row.whole else ())} <= names
    taken = select_rows_by_key(table, by_row if has_columns else erased.restrict({RAW_KEY}))
    schema = table.schema().select(*COORDINATE, _HEADERS, *taken.columns)
    held, unclear = list[str](), list[str]()
    for live in FilePlanner(AlwaysTrue()).plan(table):
        if live.file.file_format != FileFormat.PARQUET:  # of another engine, without headers
            continue
        rows = read_files(table, schema, [FileScanTask(live.file)])
        rows = rows.filter(pa.array(~taken.flag(rows)))
        for row, values in _group_headers(rows).items():
            found = _join_any([search.compare(value) for value in values])
            if found is not False:
                (held if found else unclear).append(_describe_place(rows, row))
    return held, unclear


def _group_headers(rows: pa.Table) -> dict[int, list[bytes | None]]:
    """Return the values of headers that name another key, by the number of their row."""
    chunks = read_column(rows, _HEADERS).chunks
    if not chunks:
        return {}
    headers = pa.concat_arrays(chunks)
    each = pc.list_flatten(headers)
    names = pc.struct_field(each, "key")
    chosen = pc.is_in(names, value_set=pa.array(_OTHER_KEYS, names.type))
    numbers = pc.list_parent_indices(headers).filter(chosen).to_pylist()
    grouped: dict[int, list[bytes | None]] = {}
    values = pc.struct_field(each, "value").filter(chosen).to_pylist()
    for number, value in zip(numbers, values, strict=True):
        grouped.setdefault(number, []).append(value)
    return grouped


def _describe_place(rows: pa.Table, row: int) -> str:
    topic, partition, offset = (read_column(rows, path)[row].as_py() for path in COORDINATE)
    return describe_offset(topic, partition, offset)


def _describe_held(table: Table, stream: str, places: Sequence[str], what: str) -> Iterator[str]:
    if not places:
        return
    shown = ", ".join(sorted(places)[:_SHOWN]) + (", …" if len(places) > _SHOWN else "")
    yield (
        f"{'.'.join(table.name())}: the headers {' and '.join(_OTHER_KEYS)} hold {what} in "
        f"{count_noun(len(places), 'row')} with other keys, which this erasure keeps: {shown}; "
        f"to remove these rows, erase their keys as well: `frazil erase {stream}`"
    )
