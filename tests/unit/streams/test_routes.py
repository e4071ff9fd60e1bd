"""A file with a route stands for several streams; names and tables cannot collide."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.lake import Lake, make_stream

from frazil.errors import StreamFileError, UnknownStreamError
from frazil.ingest.bootstrap import remember_route, require_unchanged_route
from frazil.maintenance.erasure import list_route_streams
from frazil.streams.loading import load_readable_streams, load_stream, load_streams_of
from frazil.streams.routes import count_own_records
from frazil.workspace import Workspace

EVENTS = """\
stream: events
owner: data-platform@example.org
source:
  topic: events
value:
  columns: {kind: string, id: long!}
table:
  name: demo.events
  partition_by: [kind]
quality:
  suite: events
route:
  field: kind
  tables:
    order.created: demo.orders
    Ship: demo.ships
"""


def write(folder: Path, text: str = EVENTS, name: str = "events") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def swapped(old: str, new: str) -> str:
    assert old in EVENTS
    return EVENTS.replace(old, new)


def test_a_route_makes_a_stream_for_each_table_and_one_for_the_rest(tmp_path: Path) -> None:
    rest, orders, ships = load_streams_of(write(tmp_path))

    assert [(s.stream, s.table.name) for s in (rest, orders, ships)] == [
        ("events", "demo.events"),
        ("events__order_created", "demo.orders"),
        ("events__ship", "demo.ships"),
    ]
    takes = [s.route.takes for s in (rest, orders, ships) if s.route]
    assert takes == [None, "order.created", "Ship"]
    assert [s.quality.suite for s in (rest, orders, ships)] == [None, "events", "events"]
    assert len({s.content_hash for s in (rest, orders, ships)}) == 3


def test_each_stream_of_a_route_is_found_by_its_name(tmp_path: Path) -> None:
    streams = load_streams_of(write(tmp_path))

    assert [load_stream(tmp_path, s.stream) for s in streams] == list(streams)
    with pytest.raises(UnknownStreamError, match="events__sold"):
        load_stream(tmp_path, "events__sold")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (
            swapped("field: kind", "field: id"),
            13,
            "not a string column of the value; those are: kind",
        ),
        (swapped("field: kind", "field: sort"), 13, "not a string column"),
        (
            swapped("Ship: demo", "Order-Created: demo"),
            15,
            "the same stream name, …__order_created",
        ),
        (swapped("Ship: demo", "'?!': demo"), 16, "no letter or digit"),
        (swapped("demo.ships", "demo.orders"), 15, "demo.orders is listed twice"),
        (swapped("demo.ships", "Ships"), 16, "'Ships' is not `namespace.table`"),
        (EVENTS + "  takes: Ship\n", 17, "unknown key"),
        (swapped("Ship", "s" * 60), 1, "should match pattern"),
        (
            swapped("  topic: events", "  topic: events\n  start: latest"),
            5,
            "start at different times",
        ),
        (
            swapped("  topic: events", "  topic: events\n  monitoring_group: lag"),
            5,
            "a group has one position",
        ),
    ],
    ids=[
        "a number",
        "no column",
        "one name",
        "no name",
        "one table",
        "bad table",
        "takes",
        "long",
        "latest",
        "a group",
    ],
)
def test_a_route_that_cannot_work_names_file_line_and_field(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = write(tmp_path, text)

    with pytest.raises(StreamFileError) as failure:
        load_streams_of(path)

    assert failure.value.facts.startswith(f"{path}:{line}: ")
    assert words in failure.value.facts


def test_a_routes_tables_and_names_are_nobody_elses(tmp_path: Path) -> None:
    write(tmp_path)
    other = EVENTS.split("route:", maxsplit=1)[0].replace("events", "events__ship")
    write(tmp_path, other.replace("demo.events__ship", "demo.other"), "events__ship")
    write(tmp_path, other.replace("events__ship", "ships"), "ships")

    streams, (name, table) = load_readable_streams(tmp_path)

    names = ["events", "events__order_created", "events__ship", "ships"]
    assert sorted(s.stream for s in streams) == names
    assert "two streams are named 'events__ship'" in name.facts
    assert "both fill demo.ships" in table.facts
    for path in (tmp_path / "events.yaml", tmp_path / "events__ship.yaml"):
        assert str(path) in name.facts
    assert f"only that of {tmp_path / 'events__ship.yaml'} is used" in name.facts
    assert load_stream(tmp_path, "events__ship").route is None


def test_a_table_judges_its_own_records_the_rest_judges_all(tmp_path: Path) -> None:
    rest, orders, _ = load_streams_of(write(tmp_path))

    assert count_own_records(orders.route, 100, 90) == 10
    assert count_own_records(rest.route, 100, 90) == 100
    assert count_own_records(None, 100, 0) == 100


ROUTED = {"columns": {"kind": "string", "id": "long!"}}


def routed(work: Workspace, **tables: str) -> Workspace:
    """Open the lake's stream as the rest of a route."""
    route = {"field": "kind", "tables": tables} if tables else None
    return replace(work, stream=make_stream(value=ROUTED, route=route))


def test_a_value_may_join_a_route_and_cannot_leave_it(lake: Lake, work: Workspace) -> None:
    remember_route(routed(work, a="demo.a"))
    remember_route(routed(work, a="demo.a", b="demo.b"))
    before = lake.table.metadata_location

    for changed in (routed(work, b="demo.b"), routed(work)):
        with pytest.raises(StreamFileError, match=r"no longer has a\b|no longer has a, b"):
            remember_route(changed)
        with pytest.raises(StreamFileError, match="would be in no table"):
            require_unchanged_route(lake.table, changed.stream)
    remember_route(routed(work, a="demo.elsewhere", b="demo.b"))

    assert lake.table.metadata_location == before


def test_the_field_of_a_route_cannot_change(lake: Lake, work: Workspace) -> None:
    remember_route(routed(work, a="demo.a"))
    columns = {"columns": {"sort": "string", "id": "long!"}}
    other = make_stream(value=columns, route={"field": "sort", "tables": {"a": "demo.a"}})

    with pytest.raises(StreamFileError, match="field has changed"):
        require_unchanged_route(lake.table, other)


def test_the_streams_of_a_route_know_each_other(tmp_path: Path) -> None:
    streams = load_streams_of(write(tmp_path))

    names = [stream.stream for stream in streams]
    assert [list_route_streams(stream) for stream in streams] == [names, names, names]
