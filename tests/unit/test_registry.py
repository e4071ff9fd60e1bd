"""The registry's client: how a connection becomes its settings, and what it says when refused."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from frazil.connections import find_registry_config
from frazil.errors import ConfigurationError, ConnectionMissingError, RegistryUnavailableError
from frazil.registry import SchemaRegistry

Seen = list[str | None]


@pytest.fixture
def picky_registry() -> Iterator[tuple[str, Seen]]:
    """Serve one subject to whoever sends the right credentials, and note what was sent."""
    seen: Seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            is_welcome = (seen[-1] or "") in {"Bearer sesame", f"Basic {_basic('me', 's3cret')}"}
            body = json.dumps(["a"] if is_welcome else {"error_code": 40101, "message": "s3cret?"})
            self.send_response(200 if is_welcome else 401)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()


def _basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def connect(monkeypatch: pytest.MonkeyPatch, **content: object) -> dict[str, str]:
    monkeypatch.setenv("AIRFLOW_CONN_REG", json.dumps({"conn_type": "http", **content}))
    return find_registry_config("reg")


@pytest.mark.parametrize(
    "credentials",
    [{"login": "me", "password": "s3cret"}, {"extra": {"token": "sesame"}}],
    ids=["basic", "bearer"],
)
def test_a_connection_s_credentials_reach_the_registry(
    picky_registry: tuple[str, Seen], monkeypatch: pytest.MonkeyPatch, credentials: object
) -> None:
    url, _ = picky_registry
    assert isinstance(credentials, dict)

    registry = SchemaRegistry(connect(monkeypatch, host=url, **credentials))

    assert registry.probe() == "1 subjects"


def test_a_registry_that_refuses_is_named_and_nothing_secret_is_said(
    picky_registry: tuple[str, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = picky_registry
    config = connect(monkeypatch, host=url, login="me", password="wr0ng")  # noqa: S106 - made up

    with pytest.raises(RegistryUnavailableError, match="it answered 401") as refusal:
        SchemaRegistry(config).probe()

    assert "wr0ng" not in str(refusal.value)
    assert "s3cret" not in str(refusal.value)
    assert "login, password or token" in refusal.value.next_step
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("content", "url"),
    [
        ({"host": "registry.example.org"}, "http://registry.example.org"),
        ({"host": "https://registry.example.org", "port": 8081}, "https://registry.example.org:8081"),
        ({"extra": {"url": "https://r.example.org/api"}}, "https://r.example.org/api"),
    ],
)  # fmt: skip
def test_a_connection_s_address(
    content: dict[str, object], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect(monkeypatch, **content)["url"] == url


def test_a_connection_without_address_or_with_a_wrong_setting_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConnectionMissingError, match="has no host"):
        connect(monkeypatch)
    with pytest.raises(ConfigurationError, match=r"ssl\.colour"):
        SchemaRegistry(connect(monkeypatch, host="http://x", extra={"ssl.colour": "red"}))
