"""A file with a topic pattern stands for a stream for each topic that is listed on this machine."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.lake import make_stream
from support.stream_files import GOOD

from frazil.errors import ConfigurationError, StreamFileError, UnknownStreamError
from frazil.streams.loading import (
    list_names_of,
    load_named_streams,
    load_readable_streams,
    load_stream,
)
from frazil.streams.topic_lists import (
    KnownTopic,
    TopicList,
    read_topics,
    topic_list_path,
    write_topics,
)

SHOP = """\
stream: shop
owner: data-platform@example.org
source:
  topic_pattern: 'shop\\.public\\.(?P<t>.+)'
  exclude_topics: [shop.public.old]
value: {columns: {id: long!}}
table:
  name: cdc.{t}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the file `shop`, and a home without a list of topics."""
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    (tmp_path / "shop.yaml").write_text(SHOP)
    return tmp_path


def know(*topics: str, begun: tuple[str, ...] = ()) -> None:
    """Write the list of topics; `begun` are those whose tables record them."""
    known = {
        f"shop.public.{t}": KnownTopic(table=f"cdc.{t}" if t in begun else None) for t in topics
    }
    write_topics(TopicList(stream="shop", refreshed_at=datetime.now(UTC), topics=known))


def test_each_topic_is_an_ordinary_stream(folder: Path) -> None:
    know("orders", "items")

    streams, errors = load_readable_streams(folder)

    assert errors == ()
    assert [s.stream for s in streams] == ["shop__items", "shop__orders"]
    plain = {"source": {"topic": "shop.public.orders"}, "table": {"name": "cdc.orders"}}
    expected = make_stream("shop__orders", value={"columns": {"id": "long!"}}, **plain)
    assert streams[1] == expected == load_stream(folder, "shop__orders")
    assert streams[1].content_hash == expected.content_hash
    assert list_names_of(folder / "shop.yaml") == ["shop__items", "shop__orders"]
    assert load_named_streams(folder, "shop") == (streams, ())
    assert load_named_streams(folder, "shop__items") == (streams[:1], ())


@pytest.mark.parametrize("text", [None, "", "{", '{"v": 2}', '{"v": 1, "stream": "shop"}'])
def test_without_a_list_there_is_no_stream_and_the_next_step_is_said(
    folder: Path, text: str | None
) -> None:
    (folder / "orders.yaml").write_text(GOOD)
    if text is not None:
        know()
        topic_list_path("shop").write_text(text)

    streams, (error,) = load_readable_streams(folder)

    assert [s.stream for s in streams] == ["orders"]
    assert "shop.yaml:4: source.topic_pattern: no topics are known: there is no" in error.facts
    assert "frazil streams --refresh" in error.next_step
    assert list_names_of(folder / "shop.yaml") == ["shop"]
    for name in ("shop", "shop__orders"):
        with pytest.raises(StreamFileError, match="no topics are known"):
            load_stream(folder, name)


def test_a_list_without_a_topic_that_matches_says_so(folder: Path) -> None:
    know("old")

    _, (error,) = load_readable_streams(folder)

    assert "shop.json lists none" in error.facts
    assert list_names_of(folder / "shop.yaml") == ["shop"]


def test_the_list_is_for_people_and_is_replaced_as_a_whole(folder: Path) -> None:
    know("orders", "items")
    know("orders", begun=("orders",))

    content = json.loads(topic_list_path("shop").read_text())

    assert content["v"] == 1
    assert content["topics"] == {"shop.public.orders": {"table": "cdc.orders", "in_kafka": True}}
    assert topic_list_path("shop").read_text().count("\n") > 5
    assert [path.name for path in (folder / "home" / "topics").iterdir()] == ["shop.json"]


@pytest.mark.usefixtures("folder")
def test_writers_with_the_same_process_id_do_not_share_a_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafts: list[str] = []
    real = Path.replace

    def note(path: Path, target: Path) -> Path:
        drafts.append(path.name)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", note)
    know("orders")
    know("orders", "items")

    assert len(set(drafts)) == 2


def test_a_list_that_cannot_be_written_leaves_the_one_before(folder: Path) -> None:
    know("orders")
    before = read_topics("shop")
    blocked = folder / "home" / "topics"
    blocked.rename(folder / "kept")
    blocked.write_text("a file where the folder should be")

    with pytest.raises(ConfigurationError, match="cannot be written"):
        know("items")

    blocked.unlink()
    (folder / "kept").rename(blocked)
    assert read_topics("shop") == before


def test_two_topics_with_one_name_are_refused_by_both_names(folder: Path) -> None:
    know("a-b", "a.b", "ok")

    streams, (error,) = load_readable_streams(folder)

    assert [s.stream for s in streams] == ["shop__ok"]
    for topic in ("shop.public.a-b", "shop.public.a.b"):
        assert topic in error.facts
    assert "exclude_topics" in error.next_step
    assert list_names_of(folder / "shop.yaml") == ["shop", "shop__ok"]
    for name in ("shop__a_b", "shop"):
        with pytest.raises(StreamFileError, match=r"shop\.public\.a-b and shop\.public\.a\.b"):
            load_stream(folder, name)


@pytest.mark.parametrize("begun", [(), ("orders",)], ids=["a new topic", "a topic that has begun"])
def test_a_topic_stops_no_file_of_its_name_and_no_file_a_topic_that_has_begun(
    folder: Path, begun: tuple[str, ...]
) -> None:
    know("orders", begun=begun)
    text = GOOD.replace("stream: orders", "stream: shop__orders")
    (folder / "shop__orders.yaml").write_text(text)

    (stream,), (error,) = load_readable_streams(folder)

    assert stream.source.topic == ("shop.public.orders" if begun else "orders")
    assert load_stream(folder, "shop__orders") == stream
    for name in ("shop.yaml", "shop__orders.yaml"):
        assert str(folder / name) in error.facts
    assert "two streams are named 'shop__orders'" in error.facts


def test_a_table_of_another_file_is_refused_by_both_names(folder: Path) -> None:
    know("orders", "ok")
    (folder / "orders.yaml").write_text(GOOD.replace("demo.orders", "cdc.orders"))

    streams, (error,) = load_readable_streams(folder)

    assert [s.stream for s in streams] == ["orders", "shop__ok", "shop__orders"]
    assert "streams 'orders' and 'shop__orders' both fill cdc.orders" in error.facts


def test_a_name_that_is_no_topics_says_how_a_new_topic_is_found(folder: Path) -> None:
    know("orders")

    with pytest.raises(UnknownStreamError, match="frazil streams --refresh"):
        load_stream(folder, "shop__new")
    with pytest.raises(UnknownStreamError, match="each of its topics has a stream of its own"):
        load_stream(folder, "shop")


def test_of_two_files_with_one_name_one_goes_on_as_of_any_others(folder: Path) -> None:
    know("orders")
    (folder / "shop.yml").write_text(SHOP)

    (stream,), (error,) = load_readable_streams(folder)

    assert load_named_streams(folder, "shop") == ((stream,), ())
    assert load_stream(folder, "shop__orders") == stream
    assert f"only that of {folder / 'shop.yaml'} is used" in error.facts


def test_a_file_that_only_mentions_a_pattern_is_an_ordinary_one(folder: Path) -> None:
    path = folder / "events.yaml"
    routed = GOOD.replace("stream: orders", "stream: events").replace("{id: long!}", "{id: string}")
    path.write_text(routed + "route: {field: id, tables: {a: demo.a}}  # no topic_pattern\n")

    assert list_names_of(path) == ["events", "events__a"]
    assert [s.stream for s in load_named_streams(folder, "events")[0]] == ["events"]


def test_state_tables_and_change_events_have_a_table_for_each_topic(folder: Path) -> None:
    text = SHOP.replace("value: {", "value: {transform: flatten_debezium, ")
    (folder / "shop.yaml").write_text(text + "  mode: upsert\n  id_columns: [id]\n")
    know("orders")

    ((stream,), errors) = load_readable_streams(folder)

    assert errors == ()
    assert stream.table.state is not None
    assert (stream.table.name, stream.table.state.name) == ("cdc.orders__changes", "cdc.orders")


def test_of_300_topics_each_is_a_stream_and_one_without_a_table_stops_no_other(
    folder: Path,
) -> None:
    text = SHOP.replace("value: {", "value: {transform: flatten_debezium, ")
    (folder / "shop.yaml").write_text(text + "  mode: upsert\n  id_columns: [id]\n")
    names = [f"t{number}" for number in range(300)]
    know(*names, "1bad")

    streams, (error,) = load_readable_streams(folder)

    assert {s.stream for s in streams} == {f"shop__{name}" for name in names}
    tables = [(s.source.topic, s.table.name, s.table.state and s.table.state.name) for s in streams]
    expected = {(f"shop.public.{name}", f"cdc.{name}__changes", f"cdc.{name}") for name in names}
    assert len(tables) == len(expected)
    assert {*tables} == expected
    assert "shop.public.1bad" in error.facts
    assert load_stream(folder, "shop__t299") in streams
    assert load_named_streams(folder, "shop")[0] == streams


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("cdc.{t}", "cdc.{u}", 8, "table.name: the pattern has no group 'u'"),
        ("cdc.{t}", "cdc.all", 8, "table.name: with `topic_pattern` each topic has a table"),
        ("cdc.{t}", "'{t}'", 8, "table.name: 'x' is not `namespace.table`"),
        ("cdc.{t}", "cdc.{t}\n  partition_by: [day(id)]", 9, "id is long; day supports"),
        ("(?P<t>", "(?<t>", 4, "source.topic_pattern: not a regular expression"),
        ("(?P<t>", "(?P<topic>", 4, "give group 'topic' another name"),
        ("table:", "route: {field: id, tables: {a: b.c}}\ntable:", 7, "route: not with"),
        ("  exclude", "  topic: orders\n  exclude", 5, "source.topic: name one `topic`, several"),
        ("  exclude", "  start: latest\n  exclude", 5, "source.start: not with `topic_pattern`"),
        ("  exclude", "  start: {offsets: {0: 1}}\n  exclude", 5, "source.start.offsets: not with"),
        ("  exclude", "  monitoring_group: lag\n  exclude", 5, "source.monitoring_group: not with"),
        ("stream: shop", "stream: store", 1, "must be the name of the file"),
    ],
)
def test_a_mistake_in_a_file_with_a_pattern_is_named_with_its_line(
    folder: Path, old: str, new: str, line: int, words: str
) -> None:
    know("orders")
    path = folder / "shop.yaml"
    path.write_text(SHOP.replace(old, new))

    _, (error,) = load_readable_streams(folder)

    assert words in error.facts
    assert error.facts.startswith(f"{path}:{line}: " if "file" not in words else f"{path}: ")
    assert list_names_of(path) in (["shop"], ["shop__orders"])


def test_an_excluded_topic_may_have_a_file_of_its_own_and_the_same_stream(folder: Path) -> None:
    know("items", "orders", begun=("items", "orders"))
    before = load_stream(folder, "shop__orders")
    (folder / "shop.yaml").write_text(SHOP.replace("public.old", "public.orders"))
    own = SHOP.replace("stream: shop", "stream: shop__orders").replace("cdc.{t}", "cdc.orders")
    first, last = own.index("  topic_pattern"), own.index("value:")
    (folder / "shop__orders.yaml").write_text(
        f"{own[:first]}  topic: shop.public.orders\n{own[last:]}"
    )

    streams, errors = load_readable_streams(folder)

    assert errors == ()
    assert {each.stream: each for each in streams}["shop__orders"] == before
    assert len(streams) == 2
