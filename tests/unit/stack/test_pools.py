"""One pool per table, whatever the state of the stream files and of Airflow."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlparse

import pytest

from frazil.streams.models import Stream
from frazil_stack.pools import PoolClient, pool_name, sync_pools, wanted_pools

PAGE = 2


class FakeAirflow(ThreadingHTTPServer):
    """Airflow's login and pools, with pages of two and tokens that can be called in."""

    def __init__(self) -> None:
        """Listen on a free port."""
        super().__init__(("127.0.0.1", 0), Answer)
        self.pools = {"default_pool": 128}
        self.tokens: set[str] = set()
        self.logins = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    """One request to the fake."""

    server: FakeAirflow

    def do_GET(self) -> None:
        if not self._is_known():
            return
        query = parse_qs(urlparse(self.path).query)
        prefix = query["pool_name_pattern"][0].rstrip("%")
        names = sorted(name for name in self.server.pools if name.startswith(prefix))
        start = int(query["offset"][0])
        page = [{"name": name} for name in names[start : start + PAGE]]
        self._send(200, {"pools": page, "total_entries": len(names)})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/auth/token":
            self.server.logins += 1
            self._login(body)
        elif self._is_known():
            is_new = body["name"] not in self.server.pools
            self.server.pools.setdefault(body["name"], body["slots"])
            self._send(201 if is_new else 409, {})

    def _login(self, body: dict[str, str]) -> None:
        if body != {"username": "admin", "password": "right"}:
            self._send(401, {"detail": "Invalid credentials"})
            return
        token = f"token-{self.server.logins}"
        self.server.tokens.add(token)
        self._send(201, {"access_token": token})

    def _is_known(self) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.server.tokens:
            self._send(401, {})
        return token in self.server.tokens

    def _send(self, status: int, content: object) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def airflow() -> Iterator[FakeAirflow]:
    """Serve the fake for the length of a test."""
    with FakeAirflow() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def write_stream(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.yaml").write_text(text)


def test_a_pool_is_named_as_the_stream_itself_names_it() -> None:
    stream = Stream.model_validate(
        {
            "stream": "flights",
            "owner": "data-platform@example.org",
            "source": {"topic": "flights"},
            "value": {"columns": {"id": "long!"}},
            "table": {"name": "demo.flights"},
        }
    )

    assert pool_name(stream.table.name) == stream.pool == "frazil_demo_flights"


def test_broken_files_hide_no_other_table(tmp_path: Path) -> None:
    write_stream(tmp_path, "a", "table: {name: demo.a}")
    write_stream(tmp_path, "broken", "table: {name: [")
    write_stream(tmp_path, "list", "- table")
    write_stream(tmp_path, "number", "table: {name: 7}")
    write_stream(tmp_path, "bare", "table: demo.bare")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00table")
    write_stream(tmp_path, "b", "table: {name: demo.b}\nunknown: {key: 1}")

    assert wanted_pools(tmp_path) == {"frazil_backfill", "frazil_demo_a", "frazil_demo_b"}


def test_the_tables_of_a_route_have_pools_too(tmp_path: Path) -> None:
    write_stream(tmp_path, "r", "table: {name: demo.rest}\nroute: {tables: {a: demo.a, b: demo.b}}")

    assert wanted_pools(tmp_path) == {
        "frazil_backfill",
        "frazil_demo_rest",
        "frazil_demo_a",
        "frazil_demo_b",
    }


def test_a_folder_that_is_not_there_wants_no_pool(tmp_path: Path) -> None:
    assert wanted_pools(tmp_path / "gone") == {"frazil_backfill"}


def test_missing_pools_are_created_with_one_slot_and_the_others_left_alone(
    airflow: FakeAirflow,
) -> None:
    airflow.pools |= {f"frazil_demo_{n}": 5 for n in range(5)}
    wanted = frozenset({"frazil_demo_0", "frazil_demo_4", "frazil_demo_new"})

    created = sync_pools(PoolClient(airflow.url, "admin", "right"), wanted)

    assert created == ("frazil_demo_new",)
    assert airflow.pools["frazil_demo_new"] == 1
    assert airflow.pools["frazil_demo_0"] == 5


def test_a_pool_that_somebody_else_creates_meanwhile_is_as_good(airflow: FakeAirflow) -> None:
    client = PoolClient(airflow.url, "admin", "right")
    airflow.pools["frazil_demo_a"] = 1

    client.create_pool("frazil_demo_a")

    assert airflow.pools["frazil_demo_a"] == 1


def test_an_expired_token_costs_one_look_and_then_a_new_login(airflow: FakeAirflow) -> None:
    client = PoolClient(airflow.url, "admin", "right")
    client.fetch_pools()
    airflow.tokens.clear()

    with pytest.raises(HTTPError):
        client.fetch_pools()

    assert client.fetch_pools() == frozenset()
    assert airflow.logins == 2


def test_a_wrong_password_is_an_error(airflow: FakeAirflow) -> None:
    with pytest.raises(HTTPError, match="401"):
        PoolClient(airflow.url, "admin", "wrong").fetch_pools()
