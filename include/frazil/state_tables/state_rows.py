"""The rows of a state table at one snapshot, file by file, and where in the source they end."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, NotNull
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from frazil.errors import IncompatibleTableError
from frazil.iceberg.catalog import translated_errors
from frazil.ledger.coordinates import Partition
from frazil.ledger.keys import KAFKA_COLUMN
from frazil.state_tables.merge_rules import DELETED_AT
from frazil.state_tables.source_table import Keyed, digest_rows
from frazil.state_tables.source_values import Pairings, read_state
from frazil.streams.change_events import SOURCE

_ROWS = 20_000
_OFFSET_BITS = 48
_TABLE = ("db", "schema", "table")
SourceName = tuple[str | None, ...]


@dataclass
class StateRows:
    """One read of a state table: its rows, and what their sources say.

    `newest` has, for each Kafka partition, the largest LSN of a change that was no row of a
    connector's snapshot; `sources` are the database, schema and table of the rows.
    """

    table: Table
    pairings: Pairings
    newest: dict[Partition, int | None] = field(default_factory=dict)
    sources: set[SourceName] = field(default_factory=set)

    def read(self, *, has_parts: bool = False) -> Iterator[list[Keyed]]:
        """Yield batches of rows, without those of deleted keys."""
        names = [each.name for each in self.pairings.all]
        own = {field.name for field in self.table.schema().fields} & {DELETED_AT}
        for batch in read_batches(self.table, (*names, SOURCE, KAFKA_COLUMN, *own)):
            self._note(batch)
            rows = batch.filter(pc.is_null(batch[DELETED_AT])) if own else batch
            if rows.num_rows:
                texts = [read_state(each, rows[each.name]) for each in self.pairings.all]
                versions = _read_versions(rows)
                yield digest_rows(texts, versions, len(self.pairings.keys), has_parts=has_parts)

    def _note(self, batch: pa.RecordBatch) -> None:
        source, kafka = batch[SOURCE], batch[KAFKA_COLUMN]
        parts = [pc.struct_field(source, name) for name in _TABLE]
        names = pa.table(dict(zip(_TABLE, parts, strict=True))).group_by([*_TABLE]).aggregate([])
        self.sources |= {tuple(row[name] for name in _TABLE) for row in names.to_pylist()}
        snapshot = pc.fill_null(pc.struct_field(source, "snapshot"), "false")
        lsn = pc.struct_field(source, "lsn")
        streamed = pc.if_else(pc.equal(snapshot, "false"), lsn, pa.scalar(None, lsn.type))
        place = {name: pc.struct_field(kafka, name) for name in ("topic", "partition")}
        grouped = pa.table({**place, "lsn": streamed}).group_by([*place])
        for row in grouped.aggregate([("lsn", "max")]).to_pylist():
            partition = row["topic"], row["partition"]
            both = [
                each for each in (self.newest.get(partition), row["lsn_max"]) if each is not None
            ]
            self.newest[partition] = max(both, default=None)


def _read_versions(rows: pa.RecordBatch) -> list[int]:
    """Return a number for the coordinate of each row, which no other change of its key has."""
    kafka = rows[KAFKA_COLUMN]
    numbers, offsets = (pc.struct_field(kafka, name) for name in ("partition", "offset"))
    shifted = pc.shift_left(numbers.cast(pa.int64()), pa.scalar(_OFFSET_BITS, pa.int64()))
    topics = pc.struct_field(kafka, "topic").dictionary_encode()
    numbered = pa.array(map(_number_topic, topics.dictionary.to_pylist()), pa.int64())
    places = pc.bit_wise_xor(shifted, offsets)
    found: list[int] = pc.bit_wise_xor(places, numbered.take(topics.indices)).to_pylist()
    return found


def _number_topic(topic: str) -> int:
    """Return a number for a topic: 64 bits of a digest of its name."""
    digest = hashlib.blake2b(topic.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def read_batches(table: Table, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read columns of the current snapshot; one data file at a time is held in memory."""
    scan = ArrowScan(table.metadata, table.io, table.schema().select(*names), AlwaysTrue())
    with translated_errors(f"reading {'.'.join(table.name())}"):
        for task in table.scan().plan_files():
            for batch in scan.to_record_batches([task]):
                for start in range(0, batch.num_rows, _ROWS):
                    yield batch.slice(start, _ROWS)


def find_source(table: Table, stream: str) -> SourceName | None:
    """Return the database, schema and table of the first row with an LSN; None without a row.

    A row that a connector read in an incremental snapshot may have none.

    Raises:
        IncompatibleTableError: no row has an LSN, so they are not from PostgreSQL.
    """
    with translated_errors(f"reading {'.'.join(table.name())}"):
        scan = table.scan(NotNull(term=f"{SOURCE}.lsn"), selected_fields=(SOURCE,), limit=1)
        known = scan.to_arrow()
    if len(known):
        found = known[SOURCE][0].as_py()
        return tuple(found.get(name) for name in _TABLE)
    if any(batch.num_rows for batch in read_batches(table, (SOURCE,))):
        raise IncompatibleTableError(
            f"stream {stream}: the rows of {'.'.join(table.name())} have no _source.lsn: their "
            "source is not PostgreSQL",
            "only tables of PostgreSQL can be compared; `frazil audit` compares any state "
            "table with its changes",
        )
    return None
