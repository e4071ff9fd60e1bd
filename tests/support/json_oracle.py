"""What docs/types.md says of a JSON record, computed by Python's standard library alone.

It shares no code with Frazil: `judge` returns the values of a row, BAD for a dead letter, or UNTOLD
where the page leaves it open.
"""

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext

import numpy as np

BAD = "dead letter"
UNTOLD = "a value that this oracle does not compute"
"""A number with a fraction in a text column: Java prints it as a double."""

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_HUGE_EXPONENT = re.compile(rb"[eE][+-]?0*[1-9][0-9]{5}")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.]([0-9]{1,6})0*)?)?"
_LOCAL = re.compile(rf"([0-9-]{{10}})[T ]{_TIME}")
_INSTANT = re.compile(rf"([0-9-]{{10}})[T ]{_TIME}(?:(Z)|([+-])([0-9]{{2}})(?::?([0-9]{{2}}))?)")
_DECIMAL = re.compile(r"-?([0-9]+)(?:[.]([0-9]+))?(?:[eE][+-]?0*[0-9]{1,2})?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_GROUP = re.compile(rb"[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==")
_RANGES = {"int": 31, "long": 63}
_NARROW = 18


class MisfitError(ValueError):
    """A value that does not fit its column."""


@dataclass(frozen=True)
class Number:
    """A JSON number as it is written."""

    text: str

    @property
    def is_whole(self) -> bool:
        """Return whether it has neither fraction nor exponent."""
        return self.text.lstrip("-").isdigit()


class Fields(list[tuple[str, object]]):
    """The fields of an object in their order, repeated names included."""


def read_json(record: bytes) -> object:
    """Read a value strictly by RFC 8259.

    Raises:
        ValueError: it is not valid.
    """

    def refuse(word: str) -> None:
        raise ValueError(word)

    found = json.loads(
        record.decode(),
        parse_int=Number,
        parse_float=Number,
        parse_constant=refuse,
        object_pairs_hook=Fields,
    )
    json.dumps(_strip(found), ensure_ascii=False).encode()  # half of a surrogate pair raises
    return found


def _strip(value: object) -> object:
    if isinstance(value, Fields):
        return [[name, _strip(each)] for name, each in value]
    if isinstance(value, list):
        return [_strip(each) for each in value]
    return None if isinstance(value, Number) else value


def judge(record: bytes, columns: Mapping[str, object]) -> dict[str, object] | str:
    """Return the values of the record's columns, BAD, or UNTOLD.

    A column's type is a text, or ["list", T], ["map", T], ["struct", {name: T}]; `!` at the end of
    a name means that it is required.
    """
    try:
        found = read_json(record)
        if not isinstance(found, Fields):
            return BAD
        values = _read_fields(found, columns)
    except (ValueError, RecursionError):
        return BAD
    has_huge = _HUGE_EXPONENT.search(record if _has_doubles(found) else _TEXT.sub(b"", record))
    return UNTOLD if has_huge else values


def _has_doubles(value: object) -> bool:
    """Return whether a name is twice in an object."""
    if isinstance(value, Fields):
        names = [name for name, _ in value]
        return len({*names}) < len(names) or any(_has_doubles(each) for _, each in value)
    return isinstance(value, list) and any(map(_has_doubles, value))


def _read_fields(found: Fields, columns: Mapping[str, object]) -> dict[str, object]:
    given, row = dict(found), dict[str, object]()
    kinds = {name.rstrip("!"): kind for name, kind in columns.items()}
    for name, value in found:
        if name in kinds:
            read_value(value, kinds[name])  # also the values that a later one replaces
    for name, kind in columns.items():
        value = read_value(given.get(name.rstrip("!")), kind)
        if value is None and name.endswith("!"):
            raise MisfitError(name)
        row[name.rstrip("!")] = value
    return row


def read_value(value: object, kind: object) -> object:  # noqa: C901, PLR0911 - one for each type
    """Return a value as the table holds it.

    Raises:
        MisfitError: the column cannot hold it.
    """
    if value is None:
        return None
    match kind, value:
        case ["struct", dict(inner)], Fields():
            return _read_fields(value, inner)
        case ["map", inner], Fields():
            if len(dict(value)) != len(value):
                raise MisfitError(value)
            return [(name, read_value(each, inner)) for name, each in value]
        case ["list", inner], list() if not isinstance(value, Fields):
            return [read_value(each, inner) for each in value]
        case "string", _:
            return _read_text(value)
        case "boolean", bool():
            return value
        case "int" | "long", Number() if value.is_whole:
            bound = 2 ** _RANGES[str(kind)]
            if -bound <= int(value.text) < bound:
                return int(value.text)
        case "float" | "double", Number():
            return _read_real(value.text, str(kind))
        case str(), str() | Number() if kind.partition("(")[0] in _READERS:
            return _READERS[kind.partition("(")[0]](value, kind)
    raise MisfitError(kind, value)


def _read_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Number):
        return str(int(value.text)) if value.is_whole else UNTOLD
    return UNTOLD


def _read_real(text: str, kind: str) -> float:
    number = 0.0 if text == "-0" else float(text)  # a whole number has no negative zero
    if kind == "float":
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    if math.isinf(number):
        raise MisfitError(text)
    return number


def _read_decimal(value: object, kind: str) -> Decimal:
    precision, scale = map(int, kind[8:-1].split(","))
    text = value.text if isinstance(value, Number) else str(value)
    found = _DECIMAL.fullmatch(text)
    if found is None:
        raise MisfitError(text)
    digits, has_exponent = len(found[1] + (found[2] or "")), "e" in text.lower()
    if isinstance(value, Number):
        most = (20 if precision <= _NARROW else 0) if has_exponent else 38
        if digits > most:
            raise MisfitError(text)
    with localcontext() as context:
        context.prec = 2000
        number = Decimal(text)
        rounded = number.quantize(Decimal(1).scaleb(-scale))
    if rounded != number or (len(rounded.as_tuple().digits) > precision and rounded != 0):
        raise MisfitError(text)
    return rounded


def _read_date(value: object, _: str = "") -> date:
    found = _DATE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise MisfitError(value)
    return date(*map(int, found.groups()))


def _read_clock(day: str, groups: tuple[str | None, ...]) -> datetime:
    hour, minute, second, fraction = groups
    parts = (
        int(hour or 0),
        int(minute or 0),
        int(second or 0),
        int((fraction or "").ljust(6, "0")),
    )
    return datetime.combine(_read_date(day), datetime.min.time()).replace(
        hour=parts[0], minute=parts[1], second=parts[2], microsecond=parts[3]
    )


def _read_local(value: object, _: str) -> datetime:
    found = _LOCAL.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise MisfitError(value)
    return _read_clock(found[1], found.groups()[1:])


def _read_instant(value: object, _: str) -> datetime:
    found = _INSTANT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise MisfitError(value)
    if found[4] is None:
        raise MisfitError(value)
    clock = _read_clock(found[1], found.groups()[1:5])
    hours, minutes = int(found[8] or 0), int(found[9] or 0)
    shift = timedelta(hours=hours, minutes=minutes)
    if minutes > 59 or shift > timedelta(hours=18):
        raise MisfitError(value)
    zone = UTC if found[6] else None
    if zone is None:
        try:
            clock = clock - shift if found[7] == "+" else clock + shift
        except OverflowError as error:
            raise MisfitError(value) from error
    return clock.replace(tzinfo=UTC)


def _read_uuid(value: object, _: str) -> bytes:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise MisfitError(value)
    return bytes.fromhex(value.replace("-", ""))


def _read_bytes(value: object, kind: str) -> bytes:
    if not isinstance(value, str) or not value.isascii():
        raise MisfitError(value)
    rest, found = value.encode(), b""
    while rest := rest.lstrip(bytes(range(33))):
        group = _GROUP.match(rest)
        if group is None:
            raise MisfitError(value)
        found, rest = found + base64.b64decode(group[0]), rest[4:]
    if kind != "binary" and len(found) != int(kind[6:-1]):
        raise MisfitError(value)
    return found


_READERS = {
    "decimal": _read_decimal,
    "date": _read_date,
    "timestamp": _read_local,
    "timestamptz": _read_instant,
    "uuid": _read_uuid,
    "binary": _read_bytes,
    "fixed": _read_bytes,
}
