"""A stream file that is broken shows itself, and takes no other stream's DAGs away."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.bases.decorator import DecoratedMappedOperator

from frazil.streams.topic_lists import KnownTopic, TopicList, write_topics

pytestmark = pytest.mark.airflow

CHECK_FILE = "check_streams_dag.py"
FIXED = {
    "accept_gap",
    "adopt",
    "backfill",
    "compare",
    "drill",
    "erase",
    "merge",
    "move_cluster",
    "readiness",
    "recover",
    "replay",
    "replay_dead_letters",
    "review_schema",
    "verify_source",
    "waive",
    "watch",
}
"""The DAGs that are there whatever the stream files say."""

WriteStream = Callable[..., Path]
Parse = Callable[[], DagBag]


def find_error(bag: DagBag) -> str:
    """Return the only import error, which must be that of the file without DAGs."""
    assert [path.rpartition("/")[2] for path in bag.import_errors] == [CHECK_FILE]
    return next(iter(bag.import_errors.values()))


def test_sound_streams_leave_no_import_error(write_stream: WriteStream, parse: Parse) -> None:
    write_stream("orders")

    assert parse().import_errors == {}


def test_a_broken_file_is_an_import_error_with_file_line_and_field(
    write_stream: WriteStream, parse: Parse
) -> None:
    write_stream("orders")
    broken = write_stream("refunds")
    broken.write_text(broken.read_text().replace("json", "jsonn"))

    bag = parse()

    place = f"{broken}:4: value.convert: Input should be"
    assert place in find_error(bag)
    assert set(bag.dags) == {"ingest__orders", "maintain__orders", "operate__orders", *FIXED}


def test_a_second_file_of_a_stream_takes_no_dag_away(
    write_stream: WriteStream, parse: Parse
) -> None:
    path = write_stream("orders")
    parse()
    newcomer = path.with_suffix(".yml")
    newcomer.write_text(path.read_text().replace("shop.orders", "shop.others"))

    bag = parse()

    assert f"only that of {path} is used" in find_error(bag)
    assert "→ shop.orders" in str(bag.dags["ingest__orders"].description)


def test_every_broken_file_is_named(write_stream: WriteStream, parse: Parse) -> None:
    for name in ("orders", "refunds"):
        write_stream(name).write_text("stream: [")

    error = find_error(parse())

    assert "orders.yaml" in error
    assert "refunds.yaml" in error


@pytest.mark.parametrize("schedule", ["61 * * * *", "a b c d e", "0 0 31 2 *"])
def test_a_schedule_without_a_next_date_stops_only_its_own_stream(
    write_stream: WriteStream, parse: Parse, schedule: str
) -> None:
    write_stream("orders")
    write_stream("refunds", schedule=schedule)

    bag = parse()

    assert "refunds.yaml:6: batch.schedule: not a cron expression: " in find_error(bag)
    assert "ingest__orders" in bag.dags
    assert "ingest__refunds" not in bag.dags


def test_a_schedule_of_once_is_sound(write_stream: WriteStream, parse: Parse) -> None:
    write_stream("orders", schedule="@once")

    assert "ingest__orders" in parse().dags


def test_an_owner_longer_than_a_tag_takes_no_dag_away(
    write_stream: WriteStream, parse: Parse
) -> None:
    write_stream("orders", owner="o" * 300)

    bag = parse()

    assert bag.import_errors == {}
    assert bag.dags["ingest__orders"].get_task("plan").owner == "o" * 300


def test_a_missing_folder_of_stream_files_is_an_import_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parse: Parse
) -> None:
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path / "nowhere"))

    assert "no such folder of stream files" in find_error(parse())


def test_the_scorecard_also_looks_at_a_broken_file(write_stream: WriteStream, parse: Parse) -> None:
    write_stream("orders")
    write_stream("refunds").write_text("stream: [")

    mapped = parse().dags["readiness"].get_task("judge_stream")

    assert isinstance(mapped, DecoratedMappedOperator)
    assert mapped.op_kwargs_expand_input.value == {"stream": ["orders", "refunds"]}


def test_a_folder_without_stream_files_is_sound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parse: Parse
) -> None:
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))

    bag = parse()

    assert bag.import_errors == {}
    assert set(bag.dags) == FIXED


def test_every_stream_of_a_route_has_its_dags_and_is_judged(
    write_stream: WriteStream, parse: Parse
) -> None:
    path = write_stream("events")
    routed = path.read_text().replace("{id: long!}", "{id: long!, kind: string}")
    path.write_text(routed + "route: {field: kind, tables: {order: shop.orders}}\n")

    bag = parse()

    streams = ["events", "events__order"]
    assert {f"{kind}__{name}" for kind in ("ingest", "maintain") for name in streams} <= set(
        bag.dags
    )
    mapped = bag.dags["readiness"].get_task("judge_stream")
    assert isinstance(mapped, DecoratedMappedOperator)
    assert mapped.op_kwargs_expand_input.value["stream"] == streams


PATTERN = """\
stream: shop
owner: shop@example.org
source: {topic_pattern: 'shop\\.(?P<t>.+)'}
value: {convert: json, columns: {id: long!}}
table: {name: "shop.{t}"}
"""


def test_each_listed_topic_of_a_pattern_has_its_dags_without_kafka_or_a_catalog(
    write_stream: WriteStream, parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_stream("shop").write_text(PATTERN)
    for connection in ("KAFKA_DEFAULT", "ICEBERG_DEFAULT"):  # asking either would fail
        monkeypatch.setenv(f"AIRFLOW_CONN_{connection}", "no connection")
    known = {f"shop.{name}": KnownTopic() for name in ("a", "b")}
    write_topics(TopicList(stream="shop", refreshed_at=datetime.now(UTC), topics=known))

    bag = parse()

    assert bag.import_errors == {}
    streams = ["shop__a", "shop__b"]
    kinds = ("ingest", "maintain", "operate")
    assert set(bag.dags) == {f"{kind}__{s}" for kind in kinds for s in streams} | FIXED
    mapped = bag.dags["readiness"].get_task("judge_stream")
    assert isinstance(mapped, DecoratedMappedOperator)
    assert mapped.op_kwargs_expand_input.value["stream"] == streams


def test_a_pattern_without_a_list_of_topics_is_an_import_error_with_the_next_step(
    write_stream: WriteStream, parse: Parse
) -> None:
    write_stream("orders")
    write_stream("shop").write_text(PATTERN)

    bag = parse()

    assert "no topics are known" in find_error(bag)
    assert "frazil streams --refresh" in find_error(bag)
    assert set(bag.dags) == {"ingest__orders", "maintain__orders", "operate__orders", *FIXED}
