"""An Airflow that is away or unwell is told with address, reason and next step, not a traceback."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.http_server import Request, serve_http

from frazil.errors import StackError
from frazil_demo.airflow_api import AirflowApi


@pytest.fixture
def url() -> Iterator[str]:
    """Log everybody in; then know no DAG, fail, be slow or locked once, or talk nonsense."""
    slow: list[str] = []
    locked: list[str] = []

    def answer(request: Request) -> tuple[int, bytes]:
        if request.command == "POST":
            request.rfile.read(int(request.headers["Content-Length"]))
            if request.path == "/api/v2/locked":
                locked.append(request.path)
                return (500, b"locked") if len(locked) == 1 else (200, b'{"asked": 2}')
            return 201, b'{"access_token": "t"}'
        if request.path == "/api/v2/slow":
            slow.append(request.path)
            time.sleep(0.3 if len(slow) == 1 else 0)
            return 200, b'{"asked": 1}'
        return {"/api/v2/broken": 500, "/api/v2/nonsense": 200}.get(request.path, 404), b"<html>"

    with serve_http(answer) as address:
        yield f"http://{address}"


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


def test_a_request_that_airflow_rolled_back_is_made_again(url: str, password: Path) -> None:
    api = AirflowApi(url, "admin", password)

    assert api.request("POST", "/locked", {}) == {"asked": 2}
