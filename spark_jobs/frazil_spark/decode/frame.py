"""A decoded frame: what every format hands to the counters, the table and the dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.ingest.messages import StageRequest
from frazil.schemas.column_decoding import value_path
from frazil.schemas.wire_format import KeyDecode, Part, WireFormat
from frazil.streams.column_types import Column
from frazil.streams.routes import Route
from frazil_spark.decode.wire_format import WireFrame

KAFKA = "_kafka"
VALUE = "_frazil_value"
INVALID = "_frazil_invalid"
GOOD = "_frazil_good"


@dataclass(frozen=True)
class Decoded:
    """Decoded records beside `_kafka`, the raw value and the flag that says which are good."""

    frame: DataFrame
    columns: tuple[Column, ...]
    invalid: str
    reason: str
    detail: str
    unwritten: str = GOOD
    """The good rows that are in no file yet."""
    wires: tuple[WireFrame, ...] = ()
    """The parts of a record that a registry's schemas decoded."""
    unnamed: str = ""
    """The fields of a record that no column names, as an array; empty where the format has none."""
    elsewhere: str = "false"
    """Records that other streams of the same route take."""

    @property
    def bad(self) -> str:
        """Write the condition of the records that are this stream's and do not fit."""
        return f"NOT {GOOD} AND NOT {self.elsewhere}"

    def select_values(self, rows: DataFrame) -> DataFrame:
        """Take the table's columns out of rows of the frame."""
        values = [F.expr(value_path(column)).alias(column.name) for column in self.columns]
        return rows.select(*values, KAFKA)


@dataclass(frozen=True)
class Forms:
    """What a decode needs beyond the columns: flat or whole values, a registry's schemas, keys."""

    is_flat: bool = True
    wire: WireFormat | None = None
    key: KeyDecode | None = None
    part: Part = "value"
    route: Route | None = None


PLAIN = Forms()


def forms_of(request: StageRequest) -> Forms:
    """Take the forms out of a request."""
    return Forms(request.is_flat, request.wire, request.key, route=request.route)


def join_any(conditions: Sequence[str | None]) -> str:
    """Join conditions; one that is null, since it looked at a null, does not hold."""
    return " OR ".join(f"coalesce({c}, false)" for c in conditions if c) or "false"


def name_missing(columns: tuple[Column, ...], missing: Sequence[str | None]) -> str:
    """Write the SQL that names the required columns that are not there."""
    parts = [
        f"CASE WHEN {condition} THEN '{column.name} is required' END"
        for column, condition in zip(columns, missing, strict=True)
        if condition
    ]
    return f"concat_ws(', ', {', '.join(parts)})" if parts else "''"
