"""An Airflow that is away or unwell is told with address, reason and next step, not a traceback."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from frazil.errors import StackError
from frazil_demo.airflow_api import AirflowApi


class Unwell(BaseHTTPRequestHandler):
    """Log everybody in; after that know no DAG, and fail or talk nonsense."""

    slow_ones: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        """Answer a login."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201, json.dumps({"access_token": "t"}))

    def do_GET(self) -> None:
        """Answer anything else, the first question about `/slow` too late."""
        if self.path == "/api/v2/slow":
            self.slow_ones.append(self.path)
            time.sleep(0.3 if len(self.slow_ones) == 1 else 0)
            self.answer(200, '{"asked": 1}')
            return
        status = {"/api/v2/broken": 500, "/api/v2/nonsense": 200}.get(self.path, 404)
        self.answer(status, "<html>")

    def answer(self, status: int, text: str) -> None:
        """Send a status and a body."""
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    """Serve on a free port."""
    with HTTPServer(("127.0.0.1", 0), Unwell) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """Write the file of the admin's password."""
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    return path


@pytest.mark.parametrize(("path", "reason"), [("/broken", "500"), ("/nonsense", "Expecting value")])
def test_an_answer_that_is_no_answer_is_told(
    url: str, password: Path, path: str, reason: str
) -> None:
    api = AirflowApi(url, "admin", password)

    with pytest.raises(StackError) as caught:
        api.request("GET", path)

    assert f"GET {url}/api/v2{path}: " in caught.value.facts
    assert reason in caught.value.facts
    assert "frazil stack status" in caught.value.next_step


def test_what_may_be_missing_is_empty(url: str, password: Path) -> None:
    assert AirflowApi(url, "admin", password).request("GET", "/dags/x", allow_missing=True) == {}


def test_an_airflow_that_is_away_is_told_without_the_password(password: Path) -> None:
    with pytest.raises(StackError, match=r"POST http://127.0.0.1:1/auth/token: ") as caught:
        AirflowApi("http://127.0.0.1:1", "admin", password)

    assert "s3cret" not in str(caught.value)


def test_a_question_that_is_not_answered_in_time_is_asked_again(
    url: str, password: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = AirflowApi(url, "admin", password)
    monkeypatch.setattr("frazil_demo.airflow_api.TIMEOUT_SECONDS", 0.2)

    assert api.request("GET", "/slow") == {"asked": 1}
