"""A decoded frame, as every format returns it to counters, table and dead letters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.ingest.messages import NO_LIMITS, RowLimits, StageRequest
from frazil.schemas.column_decoding import value_path
from frazil.schemas.wire_format import KeyDecode, Part, WireFormat
from frazil.streams.change_events import REST_TYPE, ChangeEvents
from frazil.streams.column_types import Column
from frazil.streams.routes import Route
from frazil_spark.decode.wire_format import WireFrame
from frazil_spark.sampling import choose_sample_step

KAFKA = "_kafka"
VALUE = "_frazil_value"
INVALID = "_frazil_invalid"
GOOD = "_frazil_good"


@dataclass(frozen=True)
class Decoded:
    """Decoded records beside `_kafka`, the raw value and a flag of good records."""

    frame: DataFrame
    columns: tuple[Column, ...]
    invalid: str
    reason: str
    detail: str
    unwritten: str = GOOD
    """Condition of the good rows that Spark still has to write."""
    wires: tuple[WireFrame, ...] = ()
    """The parts of a record that registered schemas decoded."""
    unmapped_fields: str = ""
    """SQL of the unmapped fields as an array, null for records that are not sampled; empty for
    formats without field names."""
    routed_elsewhere: str = "false"
    """Condition of records that are skipped: another stream of the route stores them, or none."""
    skips: Mapping[str, str] = field(default_factory=dict)
    """Name → condition of records that are skipped, to count them by name."""
    truncates: str = ""
    """Condition of the events of a truncated source table; empty without change events."""

    @property
    def bad(self) -> str:
        """Return the condition of this stream's records that do not decode or fit."""
        return f"NOT {GOOD} AND NOT {self.routed_elsewhere}"

    def select_values(self, rows: DataFrame) -> DataFrame:
        """Select the table's columns from rows of the frame."""
        values = [F.expr(value_path(column)).alias(column.name) for column in self.columns]
        return rows.select(*values, KAFKA)


@dataclass(frozen=True)
class DecodeOptions:
    """What a decode needs beyond columns: flat or whole values, registered schemas, key, route."""

    is_flat: bool = True
    wire: WireFormat | None = None
    key: KeyDecode | None = None
    part: Part = "value"
    route: Route | None = None
    events: ChangeEvents | None = None
    has_rest: bool = False
    limits: RowLimits = NO_LIMITS
    sample_step: int = 1
    """One of this many records is searched for unmapped fields."""

    @property
    def has_payload(self) -> bool:
        """Return whether the text that is decoded is another one than the record's value."""
        return self.wire is not None or self.is_flattened

    @property
    def is_flattened(self) -> bool:
        """Return whether Python workers write the text that is decoded."""
        return self.events is not None or self.has_rest


DEFAULT_OPTIONS = DecodeOptions()


def read_decode_options(request: StageRequest) -> DecodeOptions:
    """Return the decode options of a request."""
    return DecodeOptions(
        request.is_flat,
        request.wire,
        request.key,
        route=request.route,
        events=request.events,
        has_rest=REST_TYPE in request.columns.values(),
        limits=request.limits,
        sample_step=choose_sample_step(request.ranges),
    )


def find_bytes(payload: str, text: str) -> str:
    """Write the SQL that finds a text among the bytes, without making a string of them."""
    return f"contains({payload}, X'{text.encode().hex()}')"


def join_any(conditions: Sequence[str | None]) -> str:
    """Join conditions by OR; a condition that is null counts as false."""
    return " OR ".join(f"coalesce({c}, false)" for c in conditions if c) or "false"


def name_missing(columns: tuple[Column, ...], missing: Sequence[str | None]) -> str:
    """Write the SQL that names the required columns without a value."""
    parts = [
        f"CASE WHEN {condition} THEN '{column.name} is required' END"
        for column, condition in zip(columns, missing, strict=True)
        if condition
    ]
    return f"concat_ws(', ', {', '.join(parts)})" if parts else "''"
