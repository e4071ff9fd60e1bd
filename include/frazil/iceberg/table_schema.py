"""Columns of stream files as Iceberg schemas, partition specs and sort orders, and back."""

from collections.abc import Iterable, Iterator
from itertools import count
from urllib.parse import quote_plus

from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.transforms import IdentityTransform, TruncateTransform, parse_transform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)
from pyiceberg.types import PrimitiveType as IcebergPrimitive

from frazil.ledger.keys import KAFKA_COLUMN
from frazil.streams import column_types as language
from frazil.streams.column_types import Column, ColumnType
from frazil.streams.partitioning import PartitionField

_FIRST_PARTITION_ID = 1000
_NO_STATISTICS = "write.parquet.stats-enabled.column."
_FLAT_PATHS = {
    "write.object-storage.enabled": "true",
    "write.object-storage.partitioned-paths": "false",
}
"""The paths of data files name no partition values."""
_MAX_NAME_BYTES = 255
"""The longest name of a folder on Linux file systems."""
_MAX_PARTITION_BYTES = 640
"""For all partition folders of a path: a key in S3 has at most 1,024 bytes."""
_LONGEST_SHORT_VALUE = 60
"""More than a URL-encoded timestamp, decimal or uuid has."""


def to_iceberg_type(column_type: ColumnType, ids: Iterator[int]) -> IcebergType:
    """Return the Iceberg type; nested fields take their ids from `ids`."""
    match column_type:
        case language.Primitive("decimal", (precision, scale)):
            return DecimalType(precision, scale)
        case language.Primitive("fixed", (length,)):
            return FixedType(length)
        case language.Primitive(name, _):
            return _primitive(name)
        case language.ListType(element, required):
            element_id = next(ids)
            return ListType(element_id, to_iceberg_type(element, ids), element_required=required)
        case language.MapType(key, value, required):
            key_id, value_id = next(ids), next(ids)
            key_type, value_type = to_iceberg_type(key, ids), to_iceberg_type(value, ids)
            return MapType(key_id, key_type, value_id, value_type, value_required=required)
        case language.StructType(fields):
            return StructType(*[_to_field(field, ids) for field in fields])


def _primitive(name: str) -> IcebergType:
    """Return a primitive type without parameters by its Iceberg name."""
    return IcebergPrimitive.model_validate(name)


def _to_field(column: Column, ids: Iterator[int]) -> NestedField:
    field_id = next(ids)
    field_type = to_iceberg_type(column.type, ids)
    return NestedField(field_id, column.name, field_type, required=column.required)


def kafka_struct(ids: Iterator[int], *, required: bool = True) -> StructType:
    """Return the `_kafka` struct.

    In an adopted table, where old rows have no coordinates, pass `required=False`: Arrow cannot
    cast a null struct with required fields.
    """
    topic, partition, offset = (next(ids) for _ in range(3))
    rest = [next(ids) for _ in range(5)]
    header = ListType(
        next(ids),
        StructType(
            NestedField(next(ids), "key", StringType()),
            NestedField(next(ids), "value", BinaryType()),
        ),
    )
    return StructType(
        NestedField(topic, "topic", StringType(), required=required),
        NestedField(partition, "partition", IntegerType(), required=required),
        NestedField(offset, "offset", LongType(), required=required),
        NestedField(rest[0], "timestamp", TimestamptzType()),
        NestedField(rest[1], "timestamp_type", IntegerType()),
        NestedField(rest[2], "key", BinaryType()),
        NestedField(rest[3], "headers", header),
        NestedField(rest[4], "schema_id", IntegerType()),
    )


def build_table_schema(columns: tuple[Column, ...]) -> Schema:
    """Return a table's schema: the stream's columns, then `_kafka`."""
    ids = count(1)
    fields = [_to_field(column, ids) for column in columns]
    fields.append(NestedField(next(ids), KAFKA_COLUMN, kafka_struct(ids), required=True))
    return Schema(*fields)


def build_partition_spec(schema: Schema, fields: tuple[PartitionField, ...]) -> PartitionSpec:
    """Return the partition spec of a new table."""
    return PartitionSpec(
        *[
            IcebergPartitionField(
                source_id=schema.find_field(field.column).field_id,
                field_id=_FIRST_PARTITION_ID + index,
                transform=parse_transform(field.iceberg_transform),
                name=field.name,
            )
            for index, field in enumerate(fields)
        ]
    )


def build_sort_order(schema: Schema, names: tuple[str, ...]) -> SortOrder:
    """Return the sort order of a new table."""
    return SortOrder(
        *[
            SortField(source_id=schema.find_field(name).field_id, transform=IdentityTransform())
            for name in names
        ]
    )


def replace_schema(metadata: TableMetadata, schema: Schema) -> tuple[list[TableUpdate], int]:
    """Return the updates that make a schema the table's, none if it is, and the schema's id.

    A schema that the table had before is used again: catalogs refuse to add it twice.
    """
    # No lookup by hash: equal structs of PyIceberg have different hashes.
    same = (each.schema_id for each in metadata.schemas if each.fields == schema.fields)
    found = next(same, None)
    if found == metadata.current_schema_id:
        return [], found
    if found is not None:
        return [SetCurrentSchemaUpdate(schema_id=found)], found
    schema_id = max(each.schema_id for each in metadata.schemas) + 1
    added = schema.model_copy(update={"schema_id": schema_id})
    return [AddSchemaUpdate(schema_=added), SetCurrentSchemaUpdate(schema_id=-1)], schema_id


def list_required_properties(schema: Schema, spec: PartitionSpec) -> dict[str, str]:
    """Return the properties that a table with these columns and partitions must have.

    Spark's reader skips files by a uuid's smallest and largest value, but compares them as signed
    numbers: it would find no row. So files have no such statistics. And where a partition value
    could be too long for the name of a folder, paths contain no partition values.
    """
    required = {
        _NO_STATISTICS + name: "false"
        for name in schema.column_names
        if isinstance(schema.find_type(name), UUIDType)
    }
    longest = [_longest_folder_name(schema, field) for field in spec.fields]
    if longest and (max(longest) > _MAX_NAME_BYTES or sum(longest) > _MAX_PARTITION_BYTES):
        required |= _FLAT_PATHS
    return required


def _longest_folder_name(schema: Schema, field: IcebergPartitionField) -> float:
    """Return the most bytes of a partition field's folder, `name=value` with URL encoding."""
    name = len(quote_plus(field.name)) + 1
    source = schema.find_type(field.source_id)
    is_text = isinstance(source, StringType)
    if not is_text and not isinstance(source, BinaryType):
        return name + _LONGEST_SHORT_VALUE
    match field.transform:
        case IdentityTransform():
            return float("inf")
        case TruncateTransform(width=width):
            # A character has up to 4 bytes; 3 bytes have 4 digits in Base64; encoding triples both.
            return name + 12 * (width if is_text else -(-width // 3))
    return name + _LONGEST_SHORT_VALUE


def build_dead_letters_schema() -> Schema:
    """Return the schema of `<table>__dead_letters`."""
    ids = count(1)
    kafka = NestedField(next(ids), KAFKA_COLUMN, kafka_struct(ids), required=True)
    texts = ("reason", "detail", "batch_id", "attempt", "stream")
    return Schema(
        kafka,
        NestedField(next(ids), "value", BinaryType()),
        *[NestedField(next(ids), name, StringType()) for name in texts],
        NestedField(next(ids), "quarantined_at", TimestamptzType()),
        NestedField(next(ids), "resolved_by", StringType()),
    )


def read_columns(schema: Schema) -> dict[str, str]:
    """Return a table's columns without `_kafka`, name → type as in stream files.

    Raises:
        ValueError: stream files do not support the type of a column.
    """
    return {
        field.name: _write_type(field.field_type, field.name) + "!" * field.required
        for field in schema.fields
        if field.name != KAFKA_COLUMN
    }


def _write_type(field_type: IcebergType, name: str) -> str:
    match field_type:
        case StructType():
            parts = (
                f"{f.name}:{_write_type(f.field_type, f'{name}.{f.name}')}{'!' * f.required}"
                for f in field_type.fields
            )
            return f"struct<{','.join(parts)}>"
        case ListType():
            element = _write_type(field_type.element_type, f"{name}.element")
            return f"list<{element}{'!' * field_type.element_required}>"
        case MapType():
            key = _write_type(field_type.key_type, f"{name}.key")
            value = _write_type(field_type.value_type, f"{name}.value")
            return f"map<{key},{value}{'!' * field_type.value_required}>"
    text = str(field_type).replace("[", "(").replace("]", ")").replace(" ", "")
    try:
        language.parse_column("x", text)
    except ValueError as error:
        message = f"column {name} has type {field_type}, which stream files do not support"
        raise ValueError(message) from error
    return text


def list_schema_differences(schema: Schema, columns: tuple[Column, ...]) -> list[str]:
    """List the differences that prevent writing these columns to a table, one line each."""
    expected = build_table_schema(columns)
    existing = {field.name: field for field in schema.fields}
    lines = []
    for field in expected.fields:
        found = existing.get(field.name)
        if found is None:
            lines.append(f"column {field.name} is missing")
        elif write_shape(found.field_type) != write_shape(field.field_type):
            lines.append(f"column {field.name} is {found.field_type}, not {field.field_type}")
        elif found.required and not field.required:
            lines.append(f"column {field.name} is required in the table, optional in the file")
    names = {field.name for field in expected.fields}
    lines += [
        f"column {field.name} is required in the table and not in the file"
        for field in schema.fields
        if field.required and field.name not in names
    ]
    return lines


def write_shape(field_type: IcebergType) -> str:
    """Return a type as text, without field ids and without `required` of nested fields."""
    match field_type:
        case StructType():
            inner = ",".join(f"{f.name}:{write_shape(f.field_type)}" for f in field_type.fields)
            return f"struct<{inner}>"
        case ListType():
            return f"list<{write_shape(field_type.element_type)}>"
        case MapType():
            return f"map<{write_shape(field_type.key_type)},{write_shape(field_type.value_type)}>"
    return str(field_type)


def to_columns(fields: Iterable[NestedField]) -> tuple[Column, ...]:
    """Return fields as columns; types that stream files do not support keep Iceberg's name."""
    return tuple(Column(f.name, _read_type(f.field_type), f.required) for f in fields)


def _read_type(field_type: IcebergType) -> ColumnType:
    match field_type:
        case StructType():
            return language.StructType(to_columns(field_type.fields))
        case ListType():
            element = _read_type(field_type.element_type)
            return language.ListType(element, field_type.element_required)
        case MapType():
            key, value = _read_type(field_type.key_type), _read_type(field_type.value_type)
            return language.MapType(key, value, field_type.value_required)
        case DecimalType():
            return language.Primitive("decimal", (field_type.precision, field_type.scale))
        case FixedType():
            return language.Primitive("fixed", (len(field_type),))
    return language.Primitive(str(field_type))


def is_compatible_superset(current: Schema, planned: Schema) -> bool:
    """Return whether files with schema `planned` can be added to a table with `current`."""
    remaining = {field.field_id: field for field in current.fields}
    for field in planned.fields:
        found = remaining.pop(field.field_id, None)
        if found is None or found.name != field.name or found.field_type != field.field_type:
            return False
        if found.required and not field.required:
            return False
    return not any(field.required for field in remaining.values())
