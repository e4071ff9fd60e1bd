"""The page in Airflow's navigation: for people who are logged in, and safe to look at."""

import runpy
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from frazil_airflow.status_page import Line, build_app, read_line, render_page

pytestmark = pytest.mark.airflow

PROJECT = Path(__file__).parents[2]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_the_page_needs_a_session() -> None:
    client = TestClient(build_app())

    assert client.get("/").status_code == 401


def test_the_plugin_builds_the_page_at_the_first_request() -> None:
    path = PROJECT / "plugins" / "frazil_plugin.py"
    (mounted,) = runpy.run_path(str(path))["FrazilPlugin"].fastapi_apps

    answer = TestClient(mounted["app"]).get("/")

    assert answer.status_code == 401


def test_the_page_shows_where_a_stream_stands_and_links_its_dag() -> None:
    line = Line("orders", "behind", "warn", epoch=4, rows=12345, lag=6, table_clock_seconds=75)

    page = render_page([line], NOW)

    assert '<a href="../dags/ingest__orders" target="_top">orders</a>' in page
    assert '<td class="warn">behind</td>' in page
    assert '<td class="number">12,345</td>' in page
    assert '<td class="number">75</td>' in page


def test_the_page_runs_no_markup_from_errors() -> None:
    page = render_page([Line("orders", "x", why="<script>alert(1)</script>")], NOW)

    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_broken_stream_file_is_a_line_with_its_fix(write_stream: Callable[..., Path]) -> None:
    write_stream("orders").write_text("stream: [")

    line = read_line("orders")

    assert (line.state, line.level) == ("StreamFile", "fail")
    assert "orders.yaml: no valid YAML" in line.why
    assert (line.next_step or "").startswith("mend the file")
