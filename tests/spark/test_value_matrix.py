"""Each type in each place, with each partition transform, after each operation, read three ways.

In each format that has the type, by Spark and by Python workers. `make matrix` runs all cells and
prints figures; a sample has one of them, chosen by the seed, with fewer columns.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from conftest import Lab, Stack
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.sql import SparkSession
from support.figures import PROPERTY
from support.matrix import (
    MENDED,
    VALUES,
    Sent,
    Transform,
    as_uuid,
    choose_keys,
    is_held,
    keep_for_workers,
    make_layouts,
    path_of,
    plain,
    write_literal,
)
from support.matrix_forms import FORMS, Columns, Form

from frazil.iceberg.table_schema import list_required_properties
from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.stack]

WHO = ("--by", "jane@example.org", "--reason", "request 12", "--no-dry-run")
LAYOUTS = make_layouts()
SMALLEST_BATCHES = {"workers": "0", "spark": "1000000000"}
"""Decoder → the smallest batch that workers write."""
SHARE = 6
"""Of how many columns a sample keeps one, beside those that partitions, keys and expiry need."""

# Differences of other programs' readers, which are counted.
EMPTY_LISTS = "PyIceberg reads a null list of structs as an empty one"
NO_UUID = "PyIceberg finds no uuid where uuids are partitions"
UNFILTERED_UUID = "PyIceberg cannot filter a file by a uuid"


@dataclass(frozen=True)
class Cell:
    """A format, a decoder of it, and a layout of the table."""

    name: str
    form: Form
    decoder: str
    columns: Columns
    layout: Sequence[Transform]


def list_cells() -> list[Cell]:
    """List all cells; a layout that a decoder or a format has no columns for is left out."""
    cells = dict[tuple[str, str, Sequence[Transform]], Cell]()
    for format_name, form in FORMS.items():
        for decoder in SMALLEST_BATCHES:
            by_workers = decoder == "workers"
            columns = form.worker_columns if by_workers else form.columns
            for number, layout in enumerate(LAYOUTS):
                kept = keep_for_workers(layout, columns) if by_workers else layout
                kept = tuple(each for each in kept if each.column in columns)
                name = f"{format_name}-{decoder}-{number}"
                cells.setdefault(
                    (format_name, decoder, kept), Cell(name, form, decoder, columns, kept)
                )
    return [*cells.values()]


CELLS = list_cells()


@pytest.fixture(scope="module")
def spark(stack: Stack) -> Iterator[SparkSession]:
    """Open a session of this module."""
    url = str(stack.facts["spark_connect"]["url"])
    session: SparkSession = SparkSession.builder.remote(url).create()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.stop()


@dataclass
class Cells:
    """The comparisons of one table with what was sent."""

    lab: Lab
    spark: SparkSession
    form: Form
    columns: Columns
    layout: Sequence[Transform] = ()
    rows: dict[int, Mapping[str, object]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def choose(self, sent: Sequence[Sent], start: int = 0) -> dict[int, Mapping[str, object]]:
        """Return the rows of records from one on; those without a partition are dead letters."""
        return {
            number: each.row
            for number, each in enumerate(sent[start:], start)
            if all(field.has_partition(each.row) for field in self.layout)
        }

    @property
    def table(self) -> Table:
        """Load the table afresh."""
        catalog = load_catalog("lake", **self.lab.stack.catalog_properties)
        return catalog.load_table(self.lab.table)

    def do(self, *arguments: str, **environment: str) -> None:
        """Run a command, then compare what anybody can read."""
        done = self.lab.frazil(*arguments, "--json", **environment)
        self.counts["operations"] += 1
        if done.code != 0:
            self.faults.append(f"{arguments[0]}: {(done.out + done.err)[-600:]}")
        else:
            self.compare(arguments[0])

    def compare(self, operation: str) -> None:
        """Read the whole table three ways, and by filters on its columns."""
        readers: Mapping[str, Callable[[], list[pa.Table]]] = {
            "Parquet": lambda: [pq.read_table(path) for path in list_files(self.table)],
            "PyIceberg": lambda: [self.table.scan().to_arrow()],
            "Spark": lambda: [self.spark.table(f"lake.{self.lab.table}").toArrow()],
        }
        for reader, read in readers.items():
            found = {row["id"]: row for table in read() for row in table.to_pylist()}
            if found.keys() != self.rows.keys():
                self.faults.append(f"{operation}, {reader}: rows {sorted(found)}")
            for number, row in self.rows.items():
                for name in self.columns if number in found else ():
                    where = f"{operation}, {reader}, row {number}"
                    self.judge(where, name, found[number][name], row[name])
        self.compare_filters(operation)

    def judge(self, where: str, name: str, found: object, told: object) -> None:
        """Compare one cell."""
        self.counts["cells"] += 1
        kind, place = self.columns[name]
        if plain(as_uuid(found) if kind == "uuid" else found) == plain(told):
            return
        if "PyIceberg" in where and place == "deep" and told is None and found == []:
            self.counts[EMPTY_LISTS] += 1
        else:
            self.faults.append(f"{where}, {name}: {found!r}, not {told!r}")

    def compare_filters(self, operation: str) -> None:
        """Find rows by Spark and by PyIceberg: by each value of partitions, by one of others."""
        turn = self.counts["operations"]
        partitions = {each.column for each in self.layout}
        asked = [
            (name, value)
            for name, (kind, place) in self.columns.items()
            if place == "top" or name in partitions
            for index, value in enumerate(VALUES[kind])
            if name in partitions or index == turn % len(VALUES[kind])
        ]
        queries = [
            f"SELECT {index} AS q, id FROM lake.{self.lab.table} "  # noqa: S608 - own names
            f"WHERE {path_of(name)} = {write_literal(self.columns[name][0], value)}"
            for index, (name, value) in enumerate(asked)
        ]
        by_spark = {
            (row["q"], row["id"])
            for row in self.spark.sql(" UNION ALL ".join(queries)).toArrow().to_pylist()
        }
        table = self.table
        for index, (name, value) in enumerate(asked):
            told = {n for n, row in self.rows.items() if is_held(row[name], value)}
            found = {number for query, number in by_spark if query == index}
            self.counts["filters"] += 2
            if found != told:
                self.faults.append(f"{operation}, Spark, {name} = {value!r}: {found}, not {told}")
            given = value.bytes if isinstance(value, UUID) else value
            scan = table.scan(EqualTo(path_of(name), given), selected_fields=("id",))
            try:
                found = set(scan.to_arrow()["id"].to_pylist())
            except pa.ArrowNotImplementedError as error:  # PyArrow compares no uuids
                if "arrow.uuid" not in str(error):
                    raise
                self.counts[UNFILTERED_UUID] += 1
                continue
            if found != told:
                self.note_filter(operation, name, value, found, told)

    def note_filter(
        self, operation: str, name: str, value: object, found: set[int], told: set[int]
    ) -> None:
        """Count a difference of PyIceberg that is known, or add a fault."""
        kinds = {each.kind for each in self.layout if each.column == name}
        kind = self.columns[name][0]
        if kind == "uuid" and "identity" in kinds and not found:
            self.counts[NO_UUID] += 1
        else:
            self.faults.append(f"{operation}, PyIceberg, {name} = {value!r}: {found}, not {told}")

    def write_stream(self, mended: str = "string", **changes: object) -> None:
        """Write the stream file; `mended` is the type of the column that a redrive fills."""
        columns = self.form.write_columns(self.columns) | {MENDED: mended}
        value = {"convert": self.form.convert, "columns": columns}
        self.lab.write_stream(
            owner="tests@example.org", value=value, errors={"max_bad_ratio": 1.0}, **changes
        )

    def make_sent(self) -> list[Sent]:
        """Make the topic's records; their schema is registered."""
        if not self.form.schema_type:
            return self.form.make_sent(self.columns)
        schema = RegistrySchema(self.form.write_schema(self.columns), self.form.schema_type)
        with SchemaRegistryClient({"url": self.lab.stack.registry_url}) as client:
            known = client.register_schema(f"{self.lab.topic}-value", schema)
        return self.form.make_sent(self.columns, known)

    @property
    def aged(self) -> tuple[str, object]:
        """Return the column by which rows expire, and its only value that stays."""
        name = "top_date" if "top_date" in self.columns else "top_timestamptz"
        return name, max(VALUES[self.columns[name][0]])  # type: ignore[type-var]


def list_files(table: Table) -> list[str]:
    """List the table's data files, none of which has deleted rows beside it."""
    tasks = list(table.scan().plan_files())
    assert not any(task.delete_files for task in tasks)
    # PyArrow would take `file:/a%3Ab`, as Spark writes it, for the file `/a:b`.
    return [task.file.file_path.removeprefix("file:").replace("///", "/") for task in tasks]


def fill(cells: Cells, sent: Sequence[Sent], workers_from: str) -> None:
    """Read half of the records by a run; where one column is missing they are dead letters."""
    lab, half = cells.lab, len(sent) // 2
    cells.write_stream(
        stream=lab.stream,
        source={"topic": lab.stream, "start": "latest"},
        table={"name": lab.table, "partition_by": [each.text for each in cells.layout]},
        maintenance={"expire_rows": {"column": cells.aged[0], "keep_days": 30}},
    )
    lab.create_topic(partitions=1)
    lab.produce([each.record for each in sent[:half]], partitions=1)
    begun = lab.frazil("run", lab.stream)
    assert begun.code == 0, begun.out + begun.err
    cells.write_stream(mended="string!")
    lab.produce([each.record for each in sent[half:]], partitions=1)
    cells.rows = {n: row for n, row in cells.choose(sent, half).items() if not sent[n].is_letter}
    cells.do("run", lab.stream, **{MIN_RECORDS_VARIABLE: workers_from})
    written = {
        str(pq.read_metadata(path).created_by).split()[0] for path in list_files(cells.table)
    }
    cells.counts["tables"] += 1
    if (workers_from == "0") != ("parquet-cpp-arrow" in written):
        cells.faults.append(f"run: files were written by {written}")


def change(cells: Cells, sent: Sequence[Sent], workers_from: str) -> None:
    """Bring the other rows, replay and rewrite them, then remove some."""
    lab, half = cells.lab, len(sent) // 2
    direct = {MIN_RECORDS_VARIABLE: workers_from}
    cells.write_stream()
    cells.rows = cells.choose(sent, half)
    cells.do("replay-dead-letters", lab.stream, "--no-dry-run", **direct)
    cells.rows = cells.choose(sent)
    cells.do("backfill", lab.stream, "--no-dry-run", **direct)
    everything = f"{lab.topic}:0:0-{len(sent)}"
    cells.do("replay", lab.stream, "--offsets", everything, "--no-dry-run", **direct)
    cells.do("maintain", lab.stream, "--only", "compact", "--rewrite-all", "--no-dry-run")
    options = list[str]()
    names = choose_keys(cells.layout, cells.columns)
    for number, name in zip([*cells.rows][1:], names, strict=False):
        value = sent[number].row[name]
        options += ["--key", f"{name}={value}"]
        cells.rows = {n: row for n, row in cells.rows.items() if row[name] != value}
    cells.do("erase", lab.stream, *options, *WHO)
    aged, newest = cells.aged
    cells.rows = {n: r for n, r in cells.rows.items() if r[aged] in (None, newest)}
    cells.do("expire-rows", lab.stream, "--no-dry-run")
    audit = lab.frazil("audit", lab.stream, "--values")
    if audit.code != 0:
        cells.faults.append(f"audit: {(audit.out + audit.err)[-600:]}")


def sample(cell: Cell) -> Columns:
    """Return a few of the columns, with those that partitions, keys and expiry need."""
    needed = {each.column for each in cell.layout} | {"top_date", "top_timestamptz"}
    needed |= set(choose_keys(cell.layout, cell.columns))
    return {
        name: column
        for number, (name, column) in enumerate(cell.columns.items())
        if name in needed or number % SHARE == len(cell.layout)
    }


@pytest.mark.storm(1)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_table_holds_each_value_after_each_operation(
    lab: Lab,
    spark: SparkSession,
    cell: Cell,
    sampled: bool,  # noqa: FBT001
    record_property: Callable[[str, object], None],
) -> None:
    own = Lab(lab.stack, lab.folder, f"x{secrets.token_hex(4)}")
    columns = sample(cell) if sampled else cell.columns
    cells = Cells(own, spark, cell.form, columns, cell.layout)
    sent = cells.make_sent()

    fill(cells, sent, SMALLEST_BATCHES[cell.decoder])
    change(cells, sent, SMALLEST_BATCHES[cell.decoder])

    record_property(PROPERTY, {**cells.counts, "failures": len(cells.faults)})
    assert cells.faults == []


def adopt(cells: Cells, source: Cells) -> None:
    """Let another writer copy a table, with its own columns of offsets, and take it over."""
    catalog = load_catalog("lake", **cells.lab.stack.catalog_properties)
    own = [f for f in source.table.schema().fields if f.name != "_kafka"]
    places = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}
    added = [NestedField(9000 + n, *each, required=False) for n, each in enumerate(places.items())]
    schema = Schema(*own, *added)
    # Else Spark finds no uuid by the statistics that it writes itself (record 31).
    settings = list_required_properties(schema, UNPARTITIONED_PARTITION_SPEC)
    catalog.create_table(cells.lab.table, schema, properties=settings)
    names = [*(f"`{each.name}`" for each in own), *(f"_kafka.{name}" for name in places)]
    cells.spark.sql(
        f"INSERT INTO lake.{cells.lab.table} SELECT {', '.join(names)} FROM lake.{source.lab.table}"  # noqa: S608 - own names
    )
    cells.do("adopt", cells.lab.stream, *WHO)


@pytest.mark.storm(0)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_adopted_table_holds_each_value(
    lab: Lab, spark: SparkSession, form: Form, record_property: Callable[[str, object], None]
) -> None:
    own, twin = (Lab(lab.stack, lab.folder, f"{w}{secrets.token_hex(4)}") for w in "xy")
    first, second = (Cells(each, spark, form, form.columns) for each in (own, twin))
    sent = first.make_sent()
    half = len(sent) // 2
    for cells in (first, second):
        source = {"topic": own.topic, "start": "earliest"}
        cells.write_stream(stream=cells.lab.stream, source=source, table={"name": cells.lab.table})
    own.create_topic(partitions=1)
    own.produce([each.record for each in sent[:half]], partitions=1)
    first.rows = second.rows = {n: each.row for n, each in enumerate(sent[:half])}
    first.do("run", own.stream)
    adopt(second, first)
    own.produce([each.record for each in sent[half:]], partitions=1)
    first.rows = second.rows = {n: each.row for n, each in enumerate(sent)}
    for cells in (first, second):
        cells.do("run", cells.lab.stream)
    compared = own.frazil("compare", own.stream, twin.stream, "--rows-only")
    second.do("maintain", twin.stream, "--only", "compact", "--rewrite-all", "--no-dry-run")
    options = ("--offsets", f"{own.topic}:0:{half}-{len(sent)}", "--no-dry-run")
    second.do("replay", twin.stream, *options)

    counts = first.counts + second.counts
    faults = [*first.faults, *second.faults]
    if compared.code != 0:
        faults.append(f"compare: {(compared.out + compared.err)[-600:]}")
    record_property(PROPERTY, {**counts, "failures": len(faults)})
    assert faults == []
