"""Sure rows of every format: values kept whole, JSON, and payloads of a registry's schemas.

This runs in Spark's Python workers, sent there by value (see `direct_rows.py`).
"""

import json
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil_spark.fast_path.avro_reader import read_avro_columns
from frazil_spark.fast_path.cursors import Cursors, is_legible, make_array, open_payloads
from frazil_spark.fast_path.json_reader import Sure, SureReader, keep_complete
from frazil_spark.fast_path.protobuf_reader import read_message_columns


@dataclass(frozen=True)
class SchemaOrder:
    """One registered schema: what stands in front of its payloads, and how they are read."""

    schema_id: int
    headers: tuple[bytes, ...]
    layout: str


@dataclass(frozen=True)
class ValueOrder:
    """How values become columns; schemas only where a registry has them."""

    form: Literal["json", "whole", "avro", "protobuf", "json_schema"]
    schemas: tuple[SchemaOrder, ...] = ()


class Reader(Protocol):
    """Whatever reads sure rows out of raw values."""

    def read(self, values: pa.BinaryArray) -> Sure:
        """Read what is sure among raw values."""


def open_reader(order: ValueOrder, columns: pa.Schema) -> Reader:
    """Open the reader of a format; the table's columns are without `_kafka`."""
    if order.form == "json":
        return SureReader(columns)
    return WholeReader(columns) if order.form == "whole" else RegisteredReader(order, columns)


class WholeReader:
    """Keep values whole, in one column."""

    def __init__(self, columns: pa.Schema) -> None:
        """Keep the table's one column."""
        self.columns = columns

    def read(self, values: pa.BinaryArray) -> Sure:
        """Take all values that are text, if text is asked for."""
        sure = np.ones(len(values), np.bool_)
        if pa.types.is_string(self.columns.field(0).type):
            try:
                held = values.cast(pa.string())
            except pa.ArrowInvalid:
                sure = np.array([v is None or is_legible(v) for v in values.to_pylist()], np.bool_)
                held = pc.if_else(make_array(sure, pa.bool_()), values, None).cast(pa.string())
        else:
            held = values
        places = make_array(np.arange(len(values)), pa.int64())
        return keep_complete(places, [held], self.columns, make_array(sure, pa.bool_()))


class RegisteredReader:
    """Read payloads by the schema that their header names; those of no layout are not sure."""

    def __init__(self, order: ValueOrder, columns: pa.Schema) -> None:
        """Read the layouts once."""
        self._columns = columns
        self._schemas = order.schemas
        self._layouts = {s.schema_id: json.loads(s.layout or "null") for s in order.schemas}
        self._read_columns = read_avro_columns if order.form == "avro" else read_message_columns
        self._json = SureReader(columns) if order.form == "json_schema" else None

    def read(self, values: pa.BinaryArray) -> Sure:
        """Read the payloads of one schema after the other."""
        payloads = open_payloads(values)
        present = values.is_valid().to_numpy(zero_copy_only=False)
        found = []
        for schema in self._schemas:
            for header in schema.headers:
                rows = np.flatnonzero(present & payloads.begin_with(header))
                if len(rows):
                    picked = payloads.pick(rows)
                    picked.skip(len(header))
                    sure = self._read_schema(schema, make_array(rows, pa.int64()), picked)
                    ids = np.full(len(sure.places), schema.schema_id, np.int32)
                    found.append(replace(sure, schema_ids=make_array(ids, pa.int32())))
        return join_sure(found, self._columns)

    def _read_schema(self, schema: SchemaOrder, rows: pa.Int64Array, payloads: Cursors) -> Sure:
        if self._json is not None:
            sure = self._json.read(payloads.take_bytes(payloads.at, payloads.end))
            return replace(sure, places=rows.take(sure.places))
        layout = self._layouts[schema.schema_id]
        columns = self._read_columns(layout, payloads, self._columns)
        return keep_complete(rows, columns, self._columns, make_array(payloads.is_read, pa.bool_()))


def join_sure(parts: list[Sure], columns: pa.Schema) -> Sure:
    """Put the rows of several schemas together, in the order of the batch."""
    if len(parts) == 1:
        return parts[0]
    nothing = tuple(pa.array([], field.type) for field in columns)
    parts = [Sure(pa.array([], pa.int64()), nothing, pa.array([], pa.int32())), *parts]
    places = pa.concat_arrays([part.places for part in parts])
    order = pc.sort_indices(places)
    arrays = zip(*[part.columns for part in parts], strict=True)
    return Sure(
        places.take(order),
        tuple(pa.concat_arrays(list(each)).take(order) for each in arrays),
        pa.concat_arrays([part.schema_ids for part in parts]).take(order),
    )
