"""Whether decoded values are those that an oracle tells."""

import math
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from support.json_oracle import BAD, UNTOLD


def is_same(value: object, told: object, kind: object) -> bool:  # noqa: PLR0911 - one for each type
    """Return whether a decoded value is the oracle's; the entries of a map have no order."""
    match kind, value, told:
        case _, _, _ if told == UNTOLD:
            return True
        case ["struct", dict(inner)], dict(), dict():
            names = ((name.rstrip("!"), each) for name, each in inner.items())
            return all(is_same(value[name], told[name], each) for name, each in names)
        case ["list", inner], list(), list():
            pairs = zip(value, told, strict=False)
            return len(value) == len(told) and all(is_same(*pair, inner) for pair in pairs)
        case ["map", inner], list(), list():
            entries = zip(sorted(value, key=_name), sorted(told, key=_name), strict=False)
            return len(value) == len(told) and all(
                a[0] == b[0] and is_same(a[1], b[1], inner) for a, b in entries
            )
        case "uuid", str() | bytes() | uuid.UUID(), str() | bytes():
            return _as_uuid(value) == _as_uuid(told)
        case _, float(), float():
            return value.hex() == told.hex() or (math.isnan(value) and math.isnan(told))
        case _, datetime(tzinfo=zone), datetime() if zone is not None:
            return value.astimezone(UTC) == told
    return type(value) is type(told) and value == told


def _name(entry: tuple[str, object]) -> str:
    return entry[0]


def _as_uuid(value: str | bytes | uuid.UUID) -> uuid.UUID:
    match value:
        case str():
            return uuid.UUID(value)
        case bytes():
            return uuid.UUID(bytes=value)
    return value


def is_as_told(found: object, told: object, columns: Mapping[str, object]) -> bool:
    """Return whether a record became a row, or a dead letter (a text), as the oracle says."""
    if isinstance(found, str) or isinstance(told, str):
        return told == UNTOLD or (isinstance(found, str) and told == BAD)
    return is_same(found, told, ["struct", dict(columns)])
