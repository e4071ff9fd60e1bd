"""Every mistake in a stream file is answered with file, line, field and reason (A1)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from support.broken_streams import GOOD, MISTAKES, REST
from support.lake import make_stream

from frazil.errors import StreamFileError, UnknownStreamError
from frazil.streams.loading import (
    find_files_of_table,
    list_names_of,
    list_stream_files,
    load_named_streams,
    load_readable_streams,
    load_stream,
    load_streams_of,
)
from frazil.streams.models import Stream
from frazil.streams.sections import Section, StartAtTime
from frazil.streams.timestamps import to_epoch_ms


def load(path: Path) -> Stream:
    """Load a file; give its stream, with a route that of the unrouted records."""
    return load_streams_of(path)[0]


def write(folder: Path, text: str, name: str = "orders", suffix: str = ".yaml") -> Path:
    """Write a stream file."""
    path = folder / f"{name}{suffix}"
    path.write_text(text)
    return path


def swapped(old: str, new: str, text: str = GOOD) -> str:
    """Change one line of a file that holds it exactly once."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def test_the_good_file_is_good(tmp_path: Path) -> None:
    stream = load(write(tmp_path, GOOD))

    assert stream.stream == "orders"
    assert stream.errors.max_bad_records == 7


def test_the_file_with_everything_else_is_good_too(tmp_path: Path) -> None:
    stream = load(write(tmp_path, REST))

    assert stream.stream == "orders"
    assert stream.maintenance.expire_rows is not None


def list_sections(annotation: object) -> Iterator[type[Section]]:
    """Yield the models that an option's type names, however it is wrapped."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from list_sections(part)


def list_options(model: type[Section], place: str = "") -> Iterator[str]:
    """Yield the path of every option of a stream file that holds a value itself."""
    for name, field in model.model_fields.items():
        path = place + (field.alias or name)
        sections = [] if path == "table.state" else list(list_sections(field.annotation))
        for section in sections:
            yield from list_options(section, f"{path}.")
        if not sections or path == "source.start":
            yield path


@pytest.mark.parametrize("option", list(list_options(Stream)))
def test_every_option_has_a_broken_example(option: str) -> None:
    fields = [field for _, (*_, field, _) in MISTAKES]

    assert any(f"{field}.".startswith(f"{option}.") for field in fields)


@pytest.mark.parametrize(
    ("text", "mistake"),
    MISTAKES,
    ids=[f"{new.strip() or 'nothing'} for {old.strip()}" for _, (old, new, *_) in MISTAKES],
)
def test_a_broken_field_is_named_with_its_line(
    tmp_path: Path, text: str, mistake: tuple[str, str, int, str, str]
) -> None:
    old, new, line, field, reason = mistake
    path = write(tmp_path, swapped(old, new, text))

    with pytest.raises(StreamFileError) as caught:
        load(path)

    assert f"{path}:{line}: {field}: " in caught.value.facts
    assert reason in caught.value.facts
    assert "frazil streams" in caught.value.next_step


def test_a_key_in_a_shared_part_may_be_said_again_beside_it(tmp_path: Path) -> None:
    text = swapped("quality:", "quality:\n  <<: {suite: other}")

    assert load(write(tmp_path, text)).quality.suite == "orders"
    with pytest.raises(StreamFileError, match=r"orders.yaml:31: quality.suite: "):
        load(write(tmp_path, swapped("suite: orders", "suite: ../orders", text)))


@pytest.mark.parametrize(
    "start",
    ["soon", "{timestamp: yesterday}", "{offsets: {0: -1}}", "{offsets: {-1: 5}}", "{when: now}"],
)
def test_a_mistake_in_the_start_is_told_for_the_form_that_was_meant(
    tmp_path: Path, start: str
) -> None:
    path = write(tmp_path, swapped("start: earliest", f"start: {start}"))

    with pytest.raises(StreamFileError) as caught:
        load(path)

    told = caught.value.facts.splitlines()
    assert len(told) == (2 if "when" in start else 1), told


@pytest.mark.parametrize("quote", ["", '"'], ids=["as YAML's own instant", "as text"])
def test_an_instant_is_written_with_or_without_quotes(tmp_path: Path, quote: str) -> None:
    text = f"start: {{timestamp: {quote}2026-01-31T00:00:00Z{quote}}}"

    start = load(write(tmp_path, swapped("start: earliest", text))).source.start

    assert isinstance(start, StartAtTime)
    assert to_epoch_ms(start.timestamp) == 1_769_817_600_000


def test_two_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = swapped("id: long!", "id: bigint", swapped("orphan_days: 3", "orphan_days: 0"))

    with pytest.raises(StreamFileError) as caught:
        load(write(tmp_path, text))

    assert len(caught.value.facts.splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"stream: [", "not valid YAML"),
        (b"- a\n- b\n", "a stream file must be a mapping of keys"),
        (b"", "a stream file must be a mapping of keys"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
    ids=["broken YAML", "a list", "an empty file", "no UTF-8"],
)
def test_what_is_no_mapping_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "orders.yaml"
    path.write_bytes(content)

    with pytest.raises(StreamFileError, match=f"{re.escape(str(path))}: {reason}"):
        load(path)


def test_a_stream_is_named_like_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "sales")

    with pytest.raises(StreamFileError, match="'orders' must be the name of the file"):
        load(path)


@pytest.mark.parametrize("newcomer", ["a_copy", "sales"], ids=["sorted before", "sorted after"])
def test_of_two_streams_on_one_table_both_stay_and_both_files_are_named(
    tmp_path: Path, newcomer: str
) -> None:  # B9
    paths = {write(tmp_path, GOOD)}
    paths.add(write(tmp_path, swapped("stream: orders", f"stream: {newcomer}"), newcomer))

    streams, (error,) = load_readable_streams(tmp_path)

    assert {stream.stream for stream in streams} == {"orders", newcomer}
    assert "both fill demo.orders" in error.facts
    assert [path for path in paths if str(path) not in error.facts] == []
    assert set(find_files_of_table(tmp_path, "demo.orders").values()) == paths


STATE = (
    GOOD[: GOOD.index("table:")]
    + """\
table:
  name: demo.orders
  mode: upsert
  id_columns: [id]
"""
)


def test_a_table_of_rows_has_not_the_name_of_a_state_table(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, GOOD.replace("stream: orders", "stream: copies"), "copies")
    write(tmp_path, STATE)

    _, (error,) = load_readable_streams(tmp_path)

    assert "streams 'copies' and 'orders' both fill demo.orders" in error.facts


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("frazil.timeline", "frazil.timeline is a table of Frazil itself"),
        ("demo.orders__dead_letters", "belong to dead letters"),
        ("demo.Orders", "'demo.Orders' is not `namespace.table`"),
    ],
)
def test_a_state_table_has_not_the_name_of_a_table_of_frazil(
    tmp_path: Path, name: str, reason: str
) -> None:
    path = write(tmp_path, STATE.replace("demo.orders", name))

    with pytest.raises(StreamFileError, match=reason) as refused:
        load(path)

    assert ": table.name: " in refused.value.facts


@pytest.mark.parametrize("suffix", [".yml", ".YAML", ".Yml"])
def test_a_file_is_read_whatever_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, GOOD, suffix=suffix)

    (stream,), errors = load_readable_streams(tmp_path)

    assert errors == ()
    assert stream == load_stream(tmp_path, "orders")
    assert list_stream_files(tmp_path) == [path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    return tmp_path / "streams"


ROUTED = GOOD.replace("orders", "events").replace(
    "    at: timestamp", "    at: timestamp\n    name: string"
)
ROUTE = "route: {field: name, tables: {order: demo.routed}}\n"
NEWCOMER = GOOD.replace("topic: orders", "topic: others")


@pytest.mark.parametrize("suffixes", [(".yaml", ".yml"), (".yml", ".yaml"), (".YAML", ".yaml")])
@pytest.mark.parametrize("other", [NEWCOMER, "stream: ["], ids=["both are valid", "one is broken"])
def test_a_second_file_stops_no_running_stream(
    home: Path, suffixes: tuple[str, str], other: str
) -> None:
    home.mkdir()
    first, second = (home / f"orders{suffix}" for suffix in suffixes)
    first.write_text(GOOD)
    assert len(load_readable_streams(home)[0]) == 1

    second.write_text(other)
    (stream,), errors = load_readable_streams(home)

    assert stream.source.topic == "orders"
    assert load_stream(home, "orders") == stream
    assert load_named_streams(home, "orders")[0] == (stream,)
    assert [e for e in errors if f"only that of {first} is used" in e.facts]
    assert any(str(second) in e.next_step for e in errors)


def test_a_newcomer_does_not_replace_a_file_that_broke(home: Path) -> None:
    home.mkdir()
    (home / "orders.yml").write_text(GOOD)
    load_stream(home, "orders")
    (home / "orders.yaml").write_text(NEWCOMER)
    (home / "orders.yml").write_text("stream: [")

    assert load_readable_streams(home)[0] == ()
    with pytest.raises(StreamFileError, match=r"orders\.yml: not valid YAML"):
        load_stream(home, "orders")


def test_the_only_file_that_is_left_is_the_stream_s_file(home: Path) -> None:
    home.mkdir()
    (home / "orders.yml").write_text(GOOD)
    load_stream(home, "orders")
    (home / "orders.yml").rename(home / "orders.yaml")

    assert load_stream(home, "orders") == load_readable_streams(home)[0][0]


@pytest.mark.parametrize("first", ["events", "events__order"])
def test_a_file_with_the_name_of_a_routed_stream_does_not_replace_it_nor_the_other_way_round(
    home: Path, first: str
) -> None:
    home.mkdir()
    texts = {
        "events": ROUTED + ROUTE,
        "events__order": NEWCOMER.replace("orders", "events__order"),
    }
    (home / f"{first}.yaml").write_text(texts[first])
    before = load_stream(home, "events__order")
    load_readable_streams(home)

    for name, text in texts.items():
        (home / f"{name}.yaml").write_text(text)
    streams, (error,) = load_readable_streams(home)

    assert before in streams
    assert [s.stream for s in streams].count("events__order") == 1
    assert load_stream(home, "events__order") == before
    assert f"only that of {home / first}.yaml is used" in error.facts


def test_a_broken_file_stops_no_other_stream(tmp_path: Path) -> None:  # A10
    write(tmp_path, GOOD)
    write(tmp_path, "stream: [", "broken")
    write(tmp_path, GOOD.replace("orders", "sales"), "sales")

    streams, (error,) = load_readable_streams(tmp_path)

    assert [stream.stream for stream in streams] == ["orders", "sales"]
    assert "broken.yaml" in error.facts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (swapped("id: long!", f"id: {'list<' * 2000}long{'>' * 2000}"), "at most 50 levels"),
        ("[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
    ids=["type", "yaml"],
)
def test_what_is_nested_too_deeply_stops_no_other_stream(
    tmp_path: Path, text: str, reason: str
) -> None:
    write(tmp_path, GOOD)
    deep = write(tmp_path, text, "deep")

    streams, (error,) = load_readable_streams(tmp_path)

    assert [stream.stream for stream in streams] == ["orders"]
    assert f"{deep}:" in str(error)
    assert reason in str(error)


@pytest.mark.parametrize(
    "text",
    [
        *("owner: 2026-02-30", "owner: 2026-01-01 25:00:00", "owner: !!int x", "owner: !!float x"),
        *("owner: !!bool x", "owner: !!timestamp x", "owner: !!binary é", f"owner: {'9' * 5000}"),
        *("owner: !!set x", "owner: !!omap x", "owner: !!pairs x", "? [2026-02-30]\n: x"),
        *("owner: [a, {b: 2026-02-30}]", "source: {topic_pattern: 'a{99999999999}'}"),
        f"source: {{topic_pattern: '{'(' * 3000}{')' * 3000}'}}",
    ],
)
def test_a_value_that_python_cannot_hold_stops_no_other_stream(tmp_path: Path, text: str) -> None:
    write(tmp_path, GOOD)
    odd = write(tmp_path, f"stream: odd\n{text}\n", "odd")

    streams, (error,) = load_readable_streams(tmp_path)

    assert [stream.stream for stream in streams] == ["orders"]
    assert f"{odd}:" in str(error)
    assert list_names_of(odd) == ["odd"]


def test_a_value_that_yaml_cannot_read_is_named_with_line_and_field(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace('schedule: "17', "schedule: 2026-02-30 #"))

    _, (error,) = load_readable_streams(tmp_path)

    line = GOOD[: GOOD.index('"17')].count("\n") + 1
    assert f"orders.yaml:{line}: maintenance.schedule: not a valid timestamp" in str(error)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("owner: !foo 3", "could not determine a constructor for the tag '!foo'"),
        ("2026-02-30: x", "odd.yaml:2: 2026-02-30: not a valid timestamp"),
    ],
)
def test_what_is_wrong_in_yaml_is_told_as_it_is(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, f"stream: odd\n{text}\n", "odd")

    _, (error,) = load_readable_streams(tmp_path)

    assert reason in str(error)


def test_an_unknown_stream_lists_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path, GOOD)

    with pytest.raises(UnknownStreamError, match=r"no stream 'order' in .*; known: orders"):
        load_stream(tmp_path, "order")


@pytest.mark.parametrize("name", ["", "../orders", "Orders", "a\0b"])
def test_no_file_is_suggested_for_what_cannot_be_a_stream(tmp_path: Path, name: str) -> None:
    write(tmp_path, GOOD)

    with pytest.raises(UnknownStreamError, match="known: orders") as refused:
        load_stream(tmp_path, name)

    assert refused.value.next_step == "check the spelling"


def test_a_missing_folder_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(StreamFileError, match="no such folder of stream files"):
        load_readable_streams(tmp_path / "nowhere")


@pytest.mark.parametrize("convert", ["json", "string", "raw"])
def test_a_stream_that_was_written_out_whole_loads_again(tmp_path: Path, convert: str) -> None:
    value = {"convert": convert} | ({"columns": {"id": "long!"}} if convert == "json" else {})
    stream = make_stream(value=value)
    content = stream.model_dump(mode="json", by_alias=True)
    (tmp_path / "orders.yaml").write_text(yaml.safe_dump(content))

    assert load_stream(tmp_path, "orders") == stream
