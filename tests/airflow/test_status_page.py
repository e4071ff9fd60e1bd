"""The page in Airflow's navigation: for people who are logged in, and safe to look at."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.api_fastapi.core_api.security import get_user
from confluent_kafka import KafkaError, KafkaException
from fastapi.testclient import TestClient
from requests.exceptions import ReadTimeout
from support.catalog_loads import count_loads
from support.lake import Lake, make_stream
from support.scripted_catalog import ScriptedCatalog

from frazil.errors import ConfigurationError, KafkaUnavailableError
from frazil.events import note_failure
from frazil.kafka.cluster import KafkaLog
from frazil.observability.cost import BatchCost, TableSizes, sum_up_days
from frazil.observability.cost_report import CostReport
from frazil.observability.freshness import FreshnessFacts, Obstacle
from frazil.observability.parallel_reads import LateReadError
from frazil.observability.status import GroupStatus, read_status
from frazil.observability.watch import TableReading
from frazil.state_tables.state_status import StateStatus
from frazil.workspace import Workspace
from frazil_airflow.plugin import FrazilPlugin
from frazil_airflow.ui import status_page
from frazil_airflow.ui.status_page import (
    StreamRow,
    build_app,
    read_rows,
    render_page,
)
from frazil_airflow.ui.stream_page import (
    PageSection,
    RequestedOffset,
    read_days,
    read_partitions,
    read_sections,
    render_stream,
    show_stream,
)
from frazil_cli.cost import _print_reports

pytestmark = pytest.mark.airflow

PROJECT = Path(__file__).parents[2]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("path", ["/", "/streams/orders"])
def test_a_page_needs_a_session(path: str) -> None:
    client = TestClient(build_app())

    assert client.get(path).status_code == 401


@pytest.mark.parametrize(
    ("query", "requested"),
    [
        ({}, None),
        ({"partition": "", "offset": "", "topic": ""}, None),
        ({"partition": "3", "offset": "7", "topic": "orders"}, RequestedOffset(3, "7", "orders")),
        (
            {"partition": "", "offset": " orders:0:7 ", "topic": ""},
            RequestedOffset(None, "orders:0:7"),
        ),
        ({"partition": "x", "offset": "7"}, "refused"),
        ({"partition": "-1", "offset": "7"}, "refused"),
    ],
)
def test_the_form_of_a_streams_page_takes_numbers_or_an_offset_as_it_is_shown(
    monkeypatch: pytest.MonkeyPatch, query: dict[str, str], requested: object
) -> None:
    app, asked = build_app(), []
    app.dependency_overrides[get_user] = lambda: None
    monkeypatch.setattr(status_page, "list_readable", lambda _user: ["orders"])

    def note(_stream: str, *given: RequestedOffset) -> str:
        asked.append(given[0] if given else None)
        return ""

    monkeypatch.setattr(status_page, "show_stream", note)

    answer = TestClient(app).get("/streams/orders", params=query)

    assert (asked or ["refused"]) == [requested]
    assert answer.status_code == (422 if requested == "refused" else 200)


def test_the_plugin_builds_the_page_at_the_first_request() -> None:
    (mounted,) = FrazilPlugin.fastapi_apps

    answer = TestClient(mounted["app"]).get("/")

    assert answer.status_code == 401


def test_a_name_leads_to_the_streams_page_and_only_from_there_out_of_the_frame_to_its_dag() -> None:
    row = StreamRow("orders", "behind", "warn", epoch=4, rows=12345, lag=6, table_clock_seconds=75)

    page = render_page([row], NOW)

    assert '<a href="streams/orders">orders</a>' in page
    own = render_stream("orders", {}, NOW)
    assert '<a href="../../dags/ingest__orders" target="_top">' in own
    assert "/dags/" not in page  # inside the frame it would open Airflow in Airflow
    assert '<td class="warn">behind</td>' in page
    assert '<td class="number">12,345</td>' in page
    assert '<td class="number">75</td>' in page


SCRIPT = "<script>alert(1)</script>"


@pytest.mark.parametrize("field", ["stream", "state", "why", "next_step"])
def test_the_page_escapes_all_texts(field: str) -> None:
    page = render_page([StreamRow(**{"stream": "orders", "state": "x"} | {field: SCRIPT})], NOW)

    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize(
    "section",
    [
        PageSection(("Snapshot",), [(SCRIPT,)]),
        PageSection((SCRIPT,), [(1,)]),
        PageSection(note=SCRIPT),
    ],
)
def test_a_streams_page_escapes_all_texts(section: PageSection) -> None:
    page = render_stream("orders", {"Snapshots": section}, NOW)
    titled = render_stream(SCRIPT, {SCRIPT: PageSection()}, NOW)

    assert "<script>" not in page + titled
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert titled.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 5


def test_a_streams_page_tells_its_events_offsets_and_cost(
    lake: Lake, work: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 1.0)  # no broker will answer
    lake.ingest(3, 2)
    lake.ingest(4, 4)
    now = datetime.now(UTC)

    found = read_sections(work, RequestedOffset(0, "3"), now)

    newest = lake.history.head
    assert [row[2] for row in found["Timeline"].rows] == ["ingest", "ingest", "bootstrap"]
    ranges = "orders:0:3-4, orders:1:2-4"
    assert found["Snapshots"].rows[0][:5] == (str(newest), "ingest", 2, ranges, 3)
    assert found["Cost"].rows[0][1:3] == (2, 8)
    assert found["Dead letters"].note == "No open dead letters in orders, 0 restored."
    assert f"orders:0:3: snapshot {newest}" in found["Offset"].note
    page = render_stream("orders", found, now)
    assert f"<td>{ranges}</td>" in page
    assert "`frazil timeline --stream orders --since 7d` lists all of them" in page


def test_a_streams_page_shows_the_next_step_the_group_and_the_state_table(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = TableReading(FreshnessFacts("orders", "demo.orders"))
    broken = Obstacle("halted", "the table was rolled back", "`frazil recover orders`", "Halted")
    status = read_status(work, replace(reading, facts=replace(reading.facts, obstacle=broken)))
    group = GroupStatus(group="g", problem="it has 2 active members")
    state = StateStatus(table="demo.state", rows=5)
    more = {"monitoring_group": group, "state_table": state}
    found = status.model_copy(update=more)
    monkeypatch.setattr("frazil.observability.status.read_status", lambda *_: found)

    lines = read_partitions(work, reading).note.splitlines()

    assert lines == [
        "orders: halted: the table was rolled back",
        "Next: `frazil recover orders`",
        "state table demo.state: 5 rows; up to date",
        "consumer group g: it has 2 active members",
    ]


def test_a_streams_page_counts_the_cost_of_merges_as_the_command_does(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = BatchCost(NOW, 100, 1000, 0, 10, 1_000_000, 1)
    merge = BatchCost(NOW, 100, 50_000, 0, 500, 90_000_000, 40)
    sizes = TableSizes(NOW, is_batch=True, bytes_written=10**6, bytes_live=10**6, files_live=1)
    days = tuple(sum_up_days([batch], [sizes], [], None, [merge]))
    report = CostReport(stream="orders", table="t", since=NOW, until=NOW, days=days)
    monkeypatch.setattr("frazil.observability.cost_report.read_cost", lambda *_: report)
    monkeypatch.setattr("frazil_cli.cost.console.width", 200)
    work = Workspace(lake.stream, lake.folder, "run")

    section = read_days(work, TableReading(FreshnessFacts("orders", "t")), NOW, NOW)
    _print_reports([report])

    row = dict(zip(section.columns, section.rows[0], strict=True))
    assert row["Merges (CPU s)"] == "1 (50.0)"
    assert row["Written (files)"] == "91.0 MB (41)"
    assert row["Requests"] == 510
    shown = capsys.readouterr().out
    assert all(f"{value}" in shown for value in section.rows[0])


def test_a_streams_page_loads_the_table_once_for_all_its_sections(
    lake: Lake, work: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 1.0)  # no broker will answer
    lake.ingest(3, 2)
    loads = count_loads(monkeypatch, ScriptedCatalog)

    found = read_sections(
        work, RequestedOffset(None, f"{work.stream.source.names[0]}:0:2"), datetime.now(UTC)
    )

    assert [len(found[title].rows) for title in ("Timeline", "Snapshots", "Cost")] == [2, 2, 1]
    assert loads.take()["demo.orders"] == 1


def test_a_streams_page_says_what_cannot_be_read_and_shows_the_rest(
    lake: Lake, work: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    note_failure(ConfigurationError("<b>no</b>", "mend it"), "orders", "", "r")
    work.__dict__["store"] = lake.store
    lake.catalog.lost_reads = [ReadTimeout("gone")] * 20

    found = read_sections(work, None, datetime.now(UTC))

    assert found["Snapshots"].note.startswith("CatalogUnavailable: ")
    assert [row[2] for row in found["Timeline"].rows] == ["failure"]
    page = render_stream("orders", found, NOW)
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    assert "<b>" not in page


def test_a_streams_page_says_what_is_wrong_with_its_file(write_stream: Callable[..., Path]) -> None:
    write_stream("orders").write_text("stream: [")

    page = show_stream("orders")

    assert "orders.yaml: not valid YAML" in page
    assert "Next: fix the stream file" in page


@pytest.fixture
def fleet(lake: Lake, work: Workspace, write_stream: Callable[..., Path]) -> list[str]:
    """Return twelve streams that have begun, each with a table of its own."""
    names = [f"s{number}" for number in range(12)]
    for name in names:
        write_stream(name)
        columns = {"value": {"columns": {"id": "long!"}}, "table": {"name": f"shop.{name}"}}
        lake.begin(make_stream(name, **columns))
    assert work.stream.source.connection == "kafka_default"
    return names


def test_a_broker_that_two_streams_found_down_is_asked_by_no_other(
    fleet: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def fetch_nothing(_self: KafkaLog, topics: object, _isolation: str) -> None:
        asked.append(topics)
        raise KafkaUnavailableError("no answer in 10 s", "start it") from TimeoutError()

    monkeypatch.setattr(KafkaLog, "fetch_topics", fetch_nothing)

    rows = read_rows(fleet)

    assert {(row.state, row.epoch, row.rows) for row in rows} == {("KafkaUnavailable", 0, 0)}
    assert all("no answer in 10 s" in row.why and row.next_step == "start it" for row in rows)
    assert len(asked) == 2


def test_a_topic_that_a_broker_refuses_is_no_broker_that_is_down(
    fleet: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def refuse(_self: KafkaLog, topics: object, _isolation: str) -> None:
        asked.append(topics)
        denied = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        raise KafkaUnavailableError("no right to the topic", "grant it") from denied

    monkeypatch.setattr(KafkaLog, "fetch_topics", refuse)

    read_rows(fleet)

    assert len(asked) == len(fleet)


def test_a_broker_that_answers_too_late_leaves_what_the_table_says(
    fleet: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = threading.Event()
    monkeypatch.setattr(KafkaLog, "fetch_topics", lambda *_: late.wait())
    monkeypatch.setattr("frazil_airflow.ui.status_page.TIMEOUT_SECONDS", 0.5)

    rows = read_rows(fleet[:2])
    late.set()

    assert {(row.state, row.epoch, row.rows) for row in rows} == {("no answer", 0, 0)}
    assert all("frazil status s" in (row.next_step or "") for row in rows)


@pytest.mark.parametrize(
    ("error", "state", "why", "next_step"),
    [
        (RuntimeError("login failed for u:S3cr3tPw"), "Unexpected", "RuntimeError", "FRAZIL_DEBUG"),
        (ConfigurationError("no host", "set its host"), "Configuration", "no host", "set its host"),
        (LateReadError("no answer in 12 s"), "no answer", "no answer in 12 s", "frazil status ord"),
    ],
    ids=["an unexpected error", "one of ours", "a late answer"],
)
def test_a_failed_read_is_a_line_with_its_next_step_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    state: str,
    why: str,
    next_step: str,
) -> None:
    failed = {"orders": error}
    monkeypatch.setattr(
        "frazil_airflow.ui.status_page.read_all", lambda reads, *_: reads and failed
    )

    (row,) = read_rows(["orders"])

    assert (row.state, row.level) == (state, "fail")
    assert why in row.why
    assert "S3cr3tPw" not in row.why
    assert next_step in (row.next_step or "")


def test_a_broken_stream_file_is_a_line_with_its_fix(write_stream: Callable[..., Path]) -> None:
    write_stream("orders").write_text("stream: [")

    (row,) = read_rows(["orders"])

    assert (row.state, row.level) == ("StreamFile", "fail")
    assert "orders.yaml: not valid YAML" in row.why
    assert (row.next_step or "").startswith("fix the stream file")
