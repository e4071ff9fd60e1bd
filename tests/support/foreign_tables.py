"""Tables as other writers leave them: their documented columns, filled by PyIceberg."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.table import Table
from support.lake import append

Row = dict[str, object]
BEGAN_MS = 1_790_000_000_000


@dataclass(frozen=True)
class Writer:
    """One writer's columns, and what it puts there for a record."""

    fields: Sequence[pa.Field]
    place: Callable[[str, int, int, int], Row]


def _at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC)


_TOPIC, _PARTITION = pa.field("topic", pa.string()), pa.field("partition", pa.int32())
_OFFSET, _MS = pa.field("offset", pa.int64()), pa.field("timestamp", pa.int64())
_INSTANT = pa.field("timestamp", pa.timestamp("us", tz="UTC"))


def _flat(form: str, instant: pa.DataType) -> Writer:
    names = [form.format(part) for part in ("topic", "partition", "offset", "timestamp")]
    types = [pa.string(), pa.int32(), pa.int64(), instant]
    as_text = instant == pa.string()

    def place(topic: str, partition: int, offset: int, at_ms: int) -> Row:
        at: object = str(at_ms) if as_text else at_ms if instant == pa.int64() else _at(at_ms)
        return dict(zip(names, (topic, partition, offset, at), strict=True))

    return Writer([pa.field(n, t) for n, t in zip(names, types, strict=True)], place)


WRITERS: Mapping[str, Writer] = {
    "AutoMQ Table Topic": Writer(
        [pa.field("_kafka_metadata", pa.struct([_PARTITION, _OFFSET, _MS]))],
        lambda _t, p, o, ms: {"_kafka_metadata": {"partition": p, "offset": o, "timestamp": ms}},
    ),
    "Kafka Connect, nested": Writer(
        [pa.field("_kafka_metadata", pa.struct([_TOPIC, _PARTITION, _OFFSET, _MS]))],
        lambda t, p, o, ms: {
            "_kafka_metadata": {"topic": t, "partition": p, "offset": o, "timestamp": ms}
        },
    ),
    "Kafka Connect": _flat("_kafka_metadata_{}", pa.int64()),
    "Confluent Tableflow": _flat("$${}", pa.string()),
    "Confluent Tableflow, portable names": _flat("cflt_metadata_{}", pa.string()),
    "Redpanda": Writer(
        [pa.field("redpanda", pa.struct([_PARTITION, _OFFSET, _INSTANT]))],
        lambda _t, p, o, ms: {"redpanda": {"partition": p, "offset": o, "timestamp": _at(ms)}},
    ),
    "plain columns": _flat("{}", pa.timestamp("us", tz="UTC")),
}

VALUES = [pa.field("id", pa.int64()), pa.field("name", pa.string())]


@dataclass(frozen=True)
class ForeignTable:
    """A table of another writer; the topic is `orders`, every record has `id` and `name`."""

    catalog: Catalog
    name: str
    writer: Writer = WRITERS["Kafka Connect"]
    values: Sequence[pa.Field] = tuple(VALUES)
    topic: str = "orders"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.values, *self.writer.fields])

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.name)

    def create(self) -> "ForeignTable":
        with suppress(NamespaceAlreadyExistsError):
            self.catalog.create_namespace(self.name.rpartition(".")[0])
        self.catalog.create_table(self.name, self.schema)
        return self

    def write(self, *rows: Row) -> "ForeignTable":
        """Append rows in one snapshot, with `partition`, `offset` and `at_ms` its writer's way."""
        laid_out = [self.lay_out(row) for row in rows]
        append(self.catalog, self.table, pa.Table.from_pylist(laid_out, self.schema))
        return self

    def lay_out(self, row: Row) -> Row:
        partition, offset = int(str(row["partition"])), int(str(row["offset"]))
        at_ms = int(str(row.get("at_ms", BEGAN_MS + offset)))
        values = {k: v for k, v in row.items() if k not in {"partition", "offset", "at_ms"}}
        return values | self.writer.place(self.topic, partition, offset, at_ms)

    def of(self, **changes: object) -> "ForeignTable":
        return replace(self, **changes)  # type: ignore[arg-type]


def records(*ends: int, start: int = 0) -> list[Row]:
    """Make one row for each offset of each partition, as the lake's own ingest writes them."""
    return [
        {"partition": p, "offset": o, "id": o, "name": "x"}
        for p, end in enumerate(ends)
        for o in range(start, end)
    ]


def without(rows: Iterable[Row], partition: int, offset: int) -> list[Row]:
    """Leave out one record."""
    return [row for row in rows if (row["partition"], row["offset"]) != (partition, offset)]


def changed(rows: Iterable[Row], partition: int, offset: int, **values: object) -> list[Row]:
    """Change one record."""
    place = (partition, offset)
    return [row | values if (row["partition"], row["offset"]) == place else row for row in rows]
