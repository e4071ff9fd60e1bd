"""The matrix of column types, places in a row and partition transforms, with its values."""

import base64
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import zip_longest
from uuid import UUID

from frazil.streams.partitioning import ALLOWED_TYPES

MENDED = "mended"
"""A column that is required at first: records without it are brought back by a redrive."""
Pair = tuple[str, object]
"""A JSON text, and the value that the table must hold."""

_WIDEST = Decimal("9999999999999999999999999999.0123456789")
_NOON = datetime(2024, 2, 29, 12, 30, 0, 123456)  # noqa: DTZ001 - local
_FIRST, _LAST = datetime.min, datetime.max  # noqa: DTZ901 - local
_BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - local


def _write(value: object) -> str:
    match value:
        case datetime():
            zone = "Z" if value.tzinfo else ""
            return json.dumps(value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone)
        case date() | UUID():
            return json.dumps(str(value))
        case bytes():
            return json.dumps(base64.b64encode(value).decode())
        case Decimal():
            return f"{value:f}" if abs(value) < 10**7 else json.dumps(f"{value:f}")
    return json.dumps(value)


def _zoned(*values: datetime) -> list[object]:
    return [value.replace(tzinfo=UTC) for value in values]


VALUES: Mapping[str, list[object]] = {
    "boolean": [True, False],
    "int": [-(2**31), 2**31 - 1, 0, -1, 34, -(2**31) + 9],
    "long": [2**63 - 1, -(2**63), 0, -1, 34, -(2**63) + 9],
    "float": [-3.4028234663852886e38, 0.5, -0.0, 1.401298464324817e-45],
    "double": [1.7976931348623157e308, 0.1, -0.0, 5e-324],
    "decimal(9,2)": [
        Decimal("-9999999.00"),
        Decimal("9999999.99"),
        Decimal("0.00"),
        Decimal("-0.01"),
    ],
    "decimal(38,10)": [_WIDEST, Decimal("-1.5000000000"), Decimal("0E-10"), Decimal("1E-10")],
    "date": [date.min, date.max, date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)],
    "timestamp": [_LAST, _NOON, _FIRST, _BEFORE],
    "timestamptz": _zoned(_BEFORE, _FIRST, _NOON, _LAST),
    "string": ["", "ä😀", "a/b=c d%", "\ud7ff" * 17, "x" * 250, "漢字" * 21, "'\"\\`"],
    "uuid": [UUID("7f9c3e09-677c-4bbd-a479-3f349cb785e7"), UUID(int=0), UUID(int=2**128 - 1)],
    "binary": [b"", b"\xff" * 20, b"\x00", b"/=%"],
    "fixed(4)": [b"\xff" * 4, b"\0" * 4, b"\x80abc"],
}
"""Type → its values: extremes, empty ones, and some that partition folders must escape."""

PLACES = {
    "top": ("{}", "{}", lambda value: value),
    "field": ("struct<v: {}>", '{{"v": {}}}', lambda value: {"v": value}),
    "item": ("list<{}>", "[{}, null]", lambda value: [value, None]),
    "entry": ("map<string, {}>", '{{"": {}}}', lambda value: [("", value)]),
    "deep": (
        "list<struct<m: map<string, list<{}>>>>",
        '[{{"m": {{"k": [null, {}]}}}}, null]',
        lambda value: [{"m": [("k", [None, value])]}, None],
    ),
}
"""Place → its type, its JSON, and the value around a value."""

EMPTY: Mapping[str, Pair] = {
    "top": ("null", None),
    "field": ("{}", {"v": None}),
    "item": ("[]", []),
    "entry": ("{}", []),
    "deep": ('[{"m": {}}]', [{"m": []}]),
}


def name_column(kind: str, place: str) -> str:
    """Name the column of a type in a place."""
    return f"{place}_{kind.partition('(')[0]}{kind.count('38') * '38'}"


COLUMNS: Mapping[str, tuple[str, str]] = {
    name_column(kind, place): (kind, place) for kind in VALUES for place in PLACES
}
"""Column → its type and place."""

WORKER_TYPES = frozenset(
    {
        "boolean",
        "int",
        "long",
        "double",
        "decimal(9,2)",
        "date",
        "timestamp",
        "timestamptz",
        "string",
    }
)
"""Types that Python workers write from JSON; times only at the top."""
WORKER_COLUMNS = {
    name: (kind, place)
    for name, (kind, place) in COLUMNS.items()
    if kind in WORKER_TYPES
    and (place == "top" or (place in {"field", "item"} and kind[:4] not in {"date", "time"}))
}
WORKER_PARTITIONS: Mapping[str, frozenset[str]] = {
    "identity": frozenset({"boolean", "date", "int", "long", "string"}),
    "bucket": frozenset({"date", "timestamp", "timestamptz", "int", "long", "string"}),
    "truncate": frozenset({"int", "long", "string"}),
}
"""Transforms that workers compute of only some types."""
_KEY_TYPES = ("int", "long", "string", "date", "decimal(9,2)", "decimal(38,10)", "uuid")
"""Types of columns by which rows are erased."""
_BUCKETS = 2
"""Buckets of a field: a batch must have rows for all of them, or Spark writes it."""
_MOST_FIELDS, _MOST_BUCKETS = 6, 2
_LOWEST = {"int": -(2**31), "long": -(2**63)}


@dataclass(frozen=True)
class Transform:
    """A partition field of a column."""

    kind: str
    column: str

    @property
    def path(self) -> str:
        """Return the column's path in the table."""
        return path_of(self.column)

    @property
    def text(self) -> str:
        """Return the field as in a stream file."""
        if self.kind == "identity":
            return self.path
        return f"{self.kind}({self.path}{'' if self.width is None else f', {self.width}'})"

    @property
    def width(self) -> int | None:
        """Return the number of buckets, or the width of truncated values."""
        return {"bucket": _BUCKETS, "truncate": 10 if "int" in self.column else 3}.get(self.kind)

    def has_partition(self, row: Mapping[str, object]) -> bool:
        """Return whether the row's value, rounded down, is a number of its type."""
        value = row[self.column]
        value = value.get("v") if isinstance(value, dict) else value
        lowest = _LOWEST.get(COLUMNS[self.column][0])
        if self.kind != "truncate" or lowest is None or not isinstance(value, int):
            return True
        return value // (self.width or 1) * (self.width or 1) >= lowest


def path_of(name: str) -> str:
    """Return a column's path in the table."""
    return f"{name}.v" if COLUMNS[name][1] == "field" else name


def make_layouts() -> list[tuple[Transform, ...]]:
    """Put each transform of each type, at the top and in a struct, into one of few layouts."""
    waiting = [
        Transform(kind, name)
        for kind, types in ALLOWED_TYPES.items()
        for name, (of, place) in COLUMNS.items()
        if place in {"top", "field"}
        and of.partition("(")[0] in types
        and (kind, place) != ("identity", "field")  # refused: the struct may be null
    ]
    random.Random(1).shuffle(waiting)
    layouts = list[list[Transform]]()
    for each in waiting:
        layout = next((found for found in layouts if _fits(each, found)), None)
        if layout is None:
            layouts.append(layout := [])
        layout.append(each)
    return [tuple(layout) for layout in layouts]


def _fits(given: Transform, layout: Sequence[Transform]) -> bool:
    """Return whether a table can have the field too."""
    if len(layout) == _MOST_FIELDS or given.column in {each.column for each in layout}:
        return False
    if given.kind == "bucket" and [e.kind for e in layout].count("bucket") == _MOST_BUCKETS:
        return False
    kind, plain_kinds = COLUMNS[given.column][0], {"identity", "truncate"}
    return not kind.startswith(("decimal", "uuid")) or not any(
        COLUMNS[each.column][0] == kind and {each.kind, given.kind} <= plain_kinds
        for each in layout
    )


def keep_for_workers(
    layout: Sequence[Transform], columns: Mapping[str, object]
) -> tuple[Transform, ...]:
    """Return the fields of a layout that workers compute, of these columns."""
    return tuple(
        each
        for each in layout
        if each.column in columns
        and COLUMNS[each.column][1] == "top"
        and COLUMNS[each.column][0] in WORKER_PARTITIONS.get(each.kind, WORKER_TYPES)
    )


def choose_keys(layout: Sequence[Transform], columns: Mapping[str, object]) -> list[str]:
    """Choose columns by which rows are erased, those of the layout first."""
    names = [each.column for each in layout] + [name_column(kind, "top") for kind in _KEY_TYPES]
    usable = [n for n in dict.fromkeys(names) if n in columns and COLUMNS[n][1] == "top"]
    return [name for name in usable if COLUMNS[name][0] in _KEY_TYPES][:2]


@dataclass(frozen=True)
class Sent:
    """A record, its row, and whether it is a dead letter while `mended` is required."""

    record: bytes
    row: Mapping[str, object]
    is_letter: bool


def make_sent(columns: Mapping[str, tuple[str, str]]) -> list[Sent]:
    """Make records with every value in every place, then nulls, no fields, and empty ones."""
    sent = []
    for number, values in enumerate(zip_longest(*VALUES.values())):
        given = dict(zip(VALUES, values, strict=True))
        pairs = {name: _place(given[kind], place) for name, (kind, place) in columns.items()}
        sent.append(_send(number, pairs, columns))
    nulls: dict[str, Pair] = dict.fromkeys(columns, ("null", None))
    empty = {name: EMPTY[place] for name, (_, place) in columns.items()}
    ends = enumerate((nulls, {}, empty), start=len(sent))
    return [*sent, *(_send(number, pairs, columns) for number, pairs in ends)]


def _place(value: object, place: str) -> Pair:
    if value is None:
        return ("null", None)
    _, text, wrap = PLACES[place]
    return text.format(_write(value)), wrap(value)  # type: ignore[no-untyped-call]


def _send(number: int, pairs: Mapping[str, Pair], columns: Mapping[str, object]) -> Sent:
    texts = [f'"id": {number}', *(f'"{name}": {text}' for name, (text, _) in pairs.items())]
    texts += [f'"{MENDED}": "x"'] if number % 3 else []
    row = {name: pairs[name][1] if name in pairs else None for name in columns}
    return Sent(f"{{{', '.join(texts)}}}".encode(), {"id": number, **row}, number % 3 == 0)


def write_literal(kind: str, value: object) -> str:  # noqa: PLR0911 - one for each type
    """Write a value as a literal of Spark SQL."""
    match value:
        case datetime():
            word = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
            text = value.replace(tzinfo=None).isoformat(" ", "microseconds")
            return f"{word}'{text}{' UTC' if value.tzinfo else ''}'"
        case date():
            return f"DATE'{value}'"
        case Decimal():
            return f"CAST('{value:f}' AS {kind})"
        case bytes():
            return f"X'{value.hex()}'"
        case UUID():
            return f"'{value}'"
        case str():
            return f"CAST(X'{value.encode().hex()}' AS STRING)"
        case float():
            return f"CAST('{value!r}' AS {kind})"
        case int() if kind == "long":
            return f"CAST('{value}' AS BIGINT)"
        case int() if kind == "int":
            return f"CAST('{value}' AS INT)"
    return str(value).lower()


def is_held(value: object, sent: object) -> bool:
    """Return whether a row has a value at the top or in its struct."""
    return (value.get("v") if isinstance(value, dict) else value) == sent


def as_uuid(value: object) -> object:
    """Return a value with UUIDs in place of their texts; names of entries stay."""
    match value:
        case dict():
            return {name: as_uuid(each) for name, each in value.items()}
        case tuple((key, each)):
            return (key, as_uuid(each))
        case list():
            return [as_uuid(each) for each in value]
        case str():
            return UUID(value)
    return value


def plain(value: object) -> object:
    """Return a value in one form, whichever reader gave it: -0.0 is not 0.0, bytes are no uuid."""
    match value:
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case float():
            return value.hex()
        case UUID():
            return value.bytes
        case datetime(tzinfo=zone) if zone is not None:
            return value.astimezone(UTC)
    return value
