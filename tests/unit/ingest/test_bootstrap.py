"""A new stream begins only at offsets that Kafka has; until then nothing is written."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
import yaml
from pyiceberg.types import StringType
from support.lake import Lake, make_stream, make_topic

from frazil.errors import StreamFileError
from frazil.ingest.bootstrap import (
    ensure_table,
    initial_state,
    new_table,
    require_retained_start,
)
from frazil.kafka.cluster import KafkaLog, TopicFacts
from frazil.maintenance.tables import read_base_table
from frazil.observability.watch import gather_freshness_facts
from frazil.schemas.inferred_columns import with_columns
from frazil.streams.models import Stream
from frazil.workspace import Workspace

TOPIC = make_topic((20, 30), earliest=10)
Step = Callable[[Workspace], object]


def start_at(offsets: Mapping[int, int]) -> Stream:
    """Make a stream that begins at exact offsets."""
    return make_stream(source={"topic": "orders", "start": {"offsets": offsets}})


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Lake]:
    """Return a catalog without tables, and a stream that asks for what retention took."""
    lake = Lake(tmp_path, start_at({0: 5}))
    yield lake
    lake.catalog.close()


def tables_of(lake: Lake) -> list[object]:
    """List every table of the catalog."""
    return [
        table
        for namespace in lake.catalog.list_namespaces()
        for table in lake.catalog.list_tables(namespace)
    ]


@pytest.fixture(autouse=True)
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the lake's catalog, and a broker that exact offsets never ask."""
    extra = Lake(tmp_path, make_stream()).store.preset.properties
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"extra": dict(extra)}))
    kafka = {"extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))


def begin(lake: Lake, topic: TopicFacts = TOPIC) -> tuple[int, ...]:
    """Begin the lake's stream and give its next offsets."""
    work = Workspace(lake.stream, lake.folder, "test")
    try:
        return ensure_table(work, [topic]).point.state.offsets[topic.topic]
    finally:
        work.store.catalog.close()


@pytest.mark.parametrize(
    ("offsets", "facts"),
    [
        ({0: 9}, ["offset 9 of orders:0", "10-20", "source.start.offsets.0"]),
        ({1: 31}, ["offset 31 of orders:1", "10-30", "source.start.offsets.1"]),
        ({2: 10}, ["source.start.offsets.2 names a partition", "its partitions are 0 to 1"]),
    ],
    ids=["retention took it", "it is still to come", "there is no such partition"],
)
def test_a_start_that_kafka_does_not_have_is_refused_with_the_facts(
    offsets: dict[int, int], facts: list[str]
) -> None:
    with pytest.raises(StreamFileError) as caught:
        require_retained_start(start_at(offsets), [TOPIC])

    assert [fact for fact in facts if fact not in caught.value.facts] == []
    assert f"source.start.offsets.{min(offsets)}" in caught.value.next_step
    assert "orders.yaml" in caught.value.next_step


@pytest.mark.parametrize(
    ("offsets", "begun"),
    [({0: 10}, (10, 10)), ({0: 20, 1: 30}, (20, 30)), ({}, (10, 10))],
    ids=["earliest", "end", "none"],
)
def test_a_start_that_kafka_has_is_where_the_stream_begins(
    tmp_path: Path, offsets: dict[int, int], begun: tuple[int, ...]
) -> None:
    assert begin(Lake(tmp_path, start_at(offsets))) == begun


@dataclass(frozen=True)
class LaterLog:
    """A topic to which records have come since its facts were fetched."""

    first_at: int

    def fetch_offsets_at(self, *_: object) -> tuple[int, int]:
        """Answer as `KafkaLog` does."""
        return self.first_at, self.first_at


@pytest.mark.parametrize(("first_at", "begun"), [(15, (15, 15)), (25, (20, 25)), (99, (20, 30))])
def test_a_start_by_time_is_never_above_the_ends_that_the_first_batch_is_planned_with(
    first_at: int, begun: tuple[int, int]
) -> None:
    source = {"topic": "orders", "start": {"timestamp": "2013-01-31T00:00:00Z"}}
    log = cast("KafkaLog", LaterLog(first_at))

    state = initial_state(make_stream(source=source), [TOPIC], log)

    assert state.offsets == {"orders": begun}


def test_a_table_of_an_earlier_version_gets_the_properties_that_its_columns_need(
    empty: Lake,
) -> None:
    stream = make_stream(
        value={"columns": {"id": "long!", "uid": "uuid"}},
        table={"name": "demo.orders", "partition_by": ["truncate(id, 10)"]},
    )
    new = new_table(stream)
    needed = {"write.parquet.stats-enabled.column.uid": "false"}
    assert needed.items() <= dict(new.properties or {}).items()
    others = {k: v for k, v in (new.properties or {}).items() if k not in needed}
    lake = Lake(empty.folder, stream)
    lake.store.create("demo.orders", replace(new, properties=others))

    assert begin(lake) == (10, 10)
    properties, location = lake.table.properties, lake.table.metadata_location

    assert needed.items() <= properties.items()
    assert "write.object-storage.enabled" not in properties
    assert begin(lake) == (10, 10)
    assert lake.table.metadata_location == location
    lake.catalog.close()


def test_a_refused_start_leaves_no_table(empty: Lake) -> None:
    with pytest.raises(StreamFileError):
        begin(empty)

    assert tables_of(empty) == []


def test_a_refused_start_in_a_table_of_another_stream_changes_nothing(lake: Lake) -> None:
    before = tables_of(lake)
    topic = make_topic((20,), "sales", earliest=10)
    source = {"topic": "sales", "start": {"offsets": {0: 5}}}
    other = Lake(lake.folder, make_stream("sales", source=source))

    with pytest.raises(StreamFileError):
        begin(other, topic)

    assert tables_of(other) == before
    assert other.point is None
    other.catalog.close()


def test_a_stream_that_has_begun_outlives_its_first_offsets(empty: Lake) -> None:
    assert begin(empty, make_topic((20, 30))) == (5, 0)

    assert begin(empty, TOPIC) == (5, 0)
    assert len(tables_of(empty)) == 2


def write_stream(folder: Path, stream: Stream, suffix: str = ".yaml") -> None:
    """Write a stream as its file."""
    content = stream.model_dump(mode="json", by_alias=True)
    (folder / f"{stream.stream}{suffix}").write_text(yaml.safe_dump(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make an empty folder of stream files."""
    path = tmp_path / "streams"
    path.mkdir()
    return path


def plan_newcomer(work: Workspace) -> None:
    ensure_table(work, [make_topic((3, 2), work.stream.source.names[0])])


def watch_newcomer(work: Workspace) -> None:
    obstacle = gather_freshness_facts(work).obstacle
    assert obstacle is not None
    assert (obstacle.cause, obstacle.code) == ("misconfigured", "StreamFile")
    raise StreamFileError(obstacle.text, obstacle.next_step)


@pytest.mark.parametrize("topic", ["orders", "returns"], ids=["the same topic", "another topic"])
@pytest.mark.parametrize("name", ["a_copy", "sales"], ids=["sorted before", "sorted after"])
@pytest.mark.parametrize(
    "step",
    [plan_newcomer, watch_newcomer, read_base_table],
    ids=["plan", "status", "maintenance"],
)
def test_b6_b9_a_second_file_of_a_filled_table_is_refused_and_its_owner_goes_on(
    lake: Lake, work: Workspace, folder: Path, step: Step, name: str, topic: str
) -> None:  # B9
    lake.ingest(3, 2)
    newcomer = make_stream(name, source={"topic": topic})
    write_stream(folder, lake.stream)
    write_stream(folder, newcomer, ".yml")
    before = lake.table.metadata_location
    owner = replace(work, directory=folder)

    with pytest.raises(StreamFileError) as caught:
        step(replace(owner, stream=newcomer))

    assert "by stream orders (snapshot " in caught.value.facts
    assert f"{name}.yml" in caught.value.facts
    assert "orders.yaml" in caught.value.facts
    assert f"change table.name in {name}.yml" in caught.value.next_step
    assert lake.table.metadata_location == before
    assert read_base_table(owner) is not None
    assert ensure_table(owner, [make_topic((3, 2))]).point == lake.point


def test_two_new_files_of_one_table_are_both_refused_and_nothing_is_written(
    empty: Lake, folder: Path
) -> None:
    pair = [make_stream("orders"), make_stream("sales")]
    for stream in pair:
        write_stream(folder, stream)

    for stream in pair:
        work = Workspace(stream, folder, "test")
        with pytest.raises(StreamFileError, match="history records none of them") as caught:
            plan_newcomer(work)
        work.store.catalog.close()
        assert "orders.yaml" in caught.value.facts
        assert "sales.yaml" in caught.value.facts

    assert tables_of(empty) == []


def test_two_streams_that_a_table_records_go_on_in_one_folder(
    lake: Lake, work: Workspace, folder: Path
) -> None:
    second = make_stream("sales", source={"topic": "returns"})
    ensure_table(replace(work, stream=second), [make_topic((7,), "returns")])
    for stream in (lake.stream, second):
        write_stream(folder, stream)

    for stream in (lake.stream, second):
        topic = make_topic((3, 2), stream.source.names[0])
        assert ensure_table(replace(work, stream=stream, directory=folder), [topic]).point


@pytest.mark.parametrize("name", ["_file", "_POS", "_frazil_good"])
def test_a_tables_column_with_a_reserved_name_is_a_typed_error(
    lake: Lake, work: Workspace, name: str
) -> None:
    with lake.table.update_schema() as update:
        update.add_column(name, StringType())
    inferred = make_stream(value={"convert": "by_schema_id"})

    with pytest.raises(StreamFileError, match=f"column name '{name}'"):
        with_columns(replace(work, stream=inferred))
