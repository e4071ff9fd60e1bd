"""Fast-path rows of every format: whole values, JSON, and payloads of registered schemas.

This code travels to Spark's Python workers by value (see `writer.py`).
"""

import json
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil_spark.fast_path.avro_reader import read_avro_columns
from frazil_spark.fast_path.cursors import Cursors, is_valid_utf8, make_array, open_payloads
from frazil_spark.fast_path.json_reader import FastPathRows, JsonReader, keep_complete
from frazil_spark.fast_path.protobuf_reader import read_message_columns


@dataclass(frozen=True)
class SchemaSpec:
    """One registered schema: the headers of its payloads, and the layout that reads them."""

    schema_id: int
    headers: tuple[bytes, ...]
    layout: str


@dataclass(frozen=True)
class ValueSpec:
    """How values become columns; schemas only with a registry.

    `fields`: pairs of column and field of JSON, where they have different names.
    """

    form: Literal["json", "whole", "avro", "protobuf", "json_schema"]
    schemas: tuple[SchemaSpec, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()


class Reader(Protocol):
    """A reader of fast-path rows."""

    def read(self, values: pa.BinaryArray) -> FastPathRows:
        """Return the rows that are decoded without doubt."""


def open_reader(spec: ValueSpec, columns: pa.Schema) -> Reader:
    """Open the reader of a format; `columns` are the table's, without `_kafka`."""
    if spec.form == "json":
        return JsonReader(columns, dict(spec.fields))
    return WholeReader(columns) if spec.form == "whole" else RegisteredReader(spec, columns)


class WholeReader:
    """Store values whole, in one column."""

    def __init__(self, columns: pa.Schema) -> None:
        """Set the table's one column."""
        self.columns = columns

    def read(self, values: pa.BinaryArray) -> FastPathRows:
        """Return all values; of a text column those that are valid UTF-8."""
        valid = np.ones(len(values), np.bool_)
        if pa.types.is_string(self.columns.field(0).type):
            try:
                held = values.cast(pa.string())
            except pa.ArrowInvalid:
                valid = np.array(
                    [v is None or is_valid_utf8(v) for v in values.to_pylist()], np.bool_
                )
                held = pc.if_else(make_array(valid, pa.bool_()), values, None).cast(pa.string())
        else:
            held = values
        indexes = make_array(np.arange(len(values)), pa.int64())
        return keep_complete(indexes, [held], self.columns, make_array(valid, pa.bool_()))


class RegisteredReader:
    """Read payloads by the schema that their header names; without a layout Spark decodes them."""

    def __init__(self, spec: ValueSpec, columns: pa.Schema) -> None:
        """Parse the layouts once."""
        self._columns = columns
        self._schemas = spec.schemas
        self._layouts = {s.schema_id: json.loads(s.layout or "null") for s in spec.schemas}
        self._read_columns = read_avro_columns if spec.form == "avro" else read_message_columns
        is_json = spec.form == "json_schema"
        self._json = JsonReader(columns, dict(spec.fields)) if is_json else None

    def read(self, values: pa.BinaryArray) -> FastPathRows:
        """Read the payloads schema by schema; return rows in the order of the batch."""
        payloads = open_payloads(values)
        present = values.is_valid().to_numpy(zero_copy_only=False)
        found = []
        for schema in self._schemas:
            for header in schema.headers:
                rows = np.flatnonzero(present & payloads.begin_with(header))
                if len(rows):
                    picked = payloads.pick(rows)
                    picked.skip(len(header))
                    rows_read = self._read_schema(schema, make_array(rows, pa.int64()), picked)
                    ids = np.full(len(rows_read.indexes), schema.schema_id, np.int32)
                    found.append(replace(rows_read, schema_ids=make_array(ids, pa.int32())))
        return join_fast_path_rows(found, self._columns)

    def _read_schema(
        self, schema: SchemaSpec, rows: pa.Int64Array, payloads: Cursors
    ) -> FastPathRows:
        if self._json is not None:
            rows_read = self._json.read(payloads.take_bytes(payloads.at, payloads.end))
            return replace(rows_read, indexes=rows.take(rows_read.indexes))
        layout = self._layouts[schema.schema_id]
        columns = self._read_columns(layout, payloads, self._columns)
        return keep_complete(rows, columns, self._columns, make_array(payloads.is_read, pa.bool_()))


def join_fast_path_rows(parts: list[FastPathRows], columns: pa.Schema) -> FastPathRows:
    """Join the rows of several schemas, in the order of the batch."""
    if len(parts) == 1:
        return parts[0]
    empty = tuple(pa.array([], field.type) for field in columns)
    parts = [FastPathRows(pa.array([], pa.int64()), empty, pa.array([], pa.int32())), *parts]
    indexes = pa.concat_arrays([part.indexes for part in parts])
    order = pc.sort_indices(indexes)
    arrays = zip(*[part.columns for part in parts], strict=True)
    return FastPathRows(
        indexes.take(order),
        tuple(pa.concat_arrays(list(each)).take(order) for each in arrays),
        pa.concat_arrays([part.schema_ids for part in parts]).take(order),
    )
