"""The registry's client: how a connection becomes its settings, and what it says when refused."""

import base64
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from support.http_server import HOST, Request, serve_http

from frazil.connections.clients import find_registry_config
from frazil.errors import ConfigurationError, ConnectionMissingError, RegistryUnavailableError
from frazil.kafka.schema_registry import SchemaRegistry

Seen = list[str | None]


@pytest.fixture
def picky_registry() -> Iterator[tuple[str, Seen]]:
    """Serve one subject to whoever sends the right credentials, and note what was sent."""
    seen: Seen = []

    def answer(request: Request) -> tuple[int, bytes]:
        seen.append(request.headers.get("Authorization"))
        if (seen[-1] or "") in {"Bearer sesame", f"Basic {_basic('me', 's3cret')}"}:
            return 200, b'["a"]'
        return 401, b'{"error_code": 40101, "message": "s3cret?"}'

    with serve_http(answer) as address:
        yield f"http://{address}", seen


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
    assert "refuses the login, the password" in refusal.value.facts
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("content", "url"),
    [
        ({"host": "registry.example.org"}, "http://registry.example.org"),
        ({"host": "https://registry.example.org", "port": 8081}, "https://registry.example.org:8081"),
        ({"extra": {"url": "https://r.example.org/api"}}, "https://r.example.org/api"),
        ({"extra": {"url": "http://a:8081,http://b:8081"}}, "http://a:8081,http://b:8081"),
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


SCHEMA = {"schema": '"string"', "schemaType": "AVRO"}


@dataclass
class Server:
    """A registry that knows schema 7, and stumbles over as many requests as it is told to."""

    stumbles: int = 0
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str) -> tuple[int, object]:
        """Answer one request."""
        self.asked.append(path)
        if len(self.asked) <= self.stumbles:
            return 503, {"error_code": 50300, "message": "starting"}
        if path.startswith("/elsewhere"):
            return 404, {"detail": "no such route"}
        if "/schemas/ids/9" in path:
            absent = [{"name": "other", "subject": "gone", "version": 1}]
            return 200, {"schema": '"other"', "references": absent}
        if "/schemas/ids/8" in path or "/subjects/gone/" in path:
            return 404, {"error_code": 40403, "message": "no such schema"}
        return 200, SCHEMA if "/schemas/ids/7" in path else ["orders-value"]


@contextmanager
def serve(tls: ssl.SSLContext | None = None, stumbles: int = 0) -> Iterator[Server]:
    """Serve on a free port, over TLS where a context is given."""
    registry = Server(stumbles)

    def answer(request: Request) -> tuple[int, bytes]:
        status, content = registry.answer(request.path)
        return status, json.dumps(content).encode()

    with serve_http(answer, tls) as address:
        registry.url = f"http{'s' if tls else ''}://{address}"
        yield registry


def write_identity(folder: Path, name: str, address: str = HOST) -> tuple[Path, Path]:
    """Write a certificate that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(called, called, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, secret


def tls_of(certificate: Path, key: Path, wants: Path | None = None) -> ssl.SSLContext:
    """Make a server's side of TLS; `wants` is whom it asks its clients to be."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=wants)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED if wants else ssl.CERT_NONE
    return context


def test_a_registry_behind_tls_is_asked_if_its_certificate_is_trusted(tmp_path: Path) -> None:
    certificate, key = write_identity(tmp_path, "registry")

    with serve(tls_of(certificate, key)) as server:
        trusted = {"url": server.url, "ssl.ca.location": str(certificate)}
        assert SchemaRegistry(trusted).probe() == "1 subjects"
        with pytest.raises(RegistryUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            SchemaRegistry({"url": server.url, "max.retries": 0}).probe()  # type: ignore[dict-item]

    assert len(server.asked) == 1


def test_a_certificate_of_another_host_is_not_believed(tmp_path: Path) -> None:
    certificate, key = write_identity(tmp_path, "registry", "192.0.2.1")

    with serve(tls_of(certificate, key)) as server:
        config = {"url": server.url, "ssl.ca.location": str(certificate)}
        with pytest.raises(RegistryUnavailableError, match=r"not valid for '127\.0\.0\.1'"):
            SchemaRegistry(config).probe()

    assert server.asked == []


def test_a_registry_that_asks_who_is_there_gets_the_client_s_certificate(tmp_path: Path) -> None:
    certificate, key = write_identity(tmp_path, "registry")
    own, own_key = write_identity(tmp_path, "client")

    with serve(tls_of(certificate, key, wants=own)) as server:
        config = {"url": server.url, "ssl.ca.location": str(certificate)}
        known = {"ssl.certificate.location": str(own), "ssl.key.location": str(own_key)}
        assert SchemaRegistry(config | known).probe() == "1 subjects"
        with pytest.raises(RegistryUnavailableError):
            SchemaRegistry(config).probe()


def test_a_registry_that_stumbles_is_asked_again() -> None:
    with serve(stumbles=2) as server:
        found = SchemaRegistry({"url": server.url}).find_schema(7, "orders-value")

    assert found is not None
    assert len(server.asked) == 3


def test_the_next_address_is_asked_where_one_does_not_answer(
    picky_registry: tuple[str, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:1,{picky_registry[0]}"
    config = connect(monkeypatch, extra={"url": url, "token": "sesame"})

    assert SchemaRegistry({**config, "max.retries": "0"}).probe() == "1 subjects"


@pytest.mark.parametrize(
    "url",
    ["http://a:8081,me:pw@b:8081", "http://us,er:pw@h:81", "me:pw@a:8081", "", " , ", "http://:81"],
)
def test_an_address_without_scheme_or_host_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no valid scheme, host and port") as refusal:
        SchemaRegistry({"url": url})

    assert "pw" not in str(refusal.value)


def test_a_comma_may_follow_the_last_address(
    picky_registry: tuple[str, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"url": f"{picky_registry[0]}, ", "token": "sesame"}

    assert SchemaRegistry(connect(monkeypatch, extra=extra)).probe() == "1 subjects"


def test_all_addresses_are_named_where_none_answers() -> None:
    registry = SchemaRegistry({"url": "http://me:pw@127.0.0.1:1, http://127.0.0.1:2"})

    with pytest.raises(RegistryUnavailableError) as refusal:
        registry.probe()

    assert "schema registry at http://127.0.0.1:1, http://127.0.0.1:2: " in str(refusal.value)
    assert "pw" not in str(refusal.value)


def test_a_registry_that_stays_away_is_named_after_four_questions() -> None:
    with serve(stumbles=99) as server, pytest.raises(RegistryUnavailableError, match="503"):
        SchemaRegistry({"url": server.url}).find_schema(7, "orders-value")

    assert len(server.asked) == 4


def test_only_the_api_s_own_words_make_a_schema_unknown() -> None:
    with serve() as server:
        assert SchemaRegistry({"url": server.url}).find_schema(8, "orders-value") is None
        elsewhere = SchemaRegistry({"url": f"{server.url}/elsewhere"})
        for ask in (
            lambda: elsewhere.find_schema(8, "orders-value"),
            lambda: elsewhere.find_latest("orders-value"),
            lambda: elsewhere.list_schemas("orders-value"),
        ):
            with pytest.raises(RegistryUnavailableError, match="it answered 404"):
                ask()


def test_a_reference_that_the_registry_does_not_have_is_named() -> None:
    with serve() as server, pytest.raises(RegistryUnavailableError, match="1 of subject gone"):
        SchemaRegistry({"url": server.url}).find_schema(9, "orders-value")


def test_a_schema_is_asked_for_once() -> None:
    with serve() as server:
        registry = SchemaRegistry({"url": server.url})
        found = [registry.find_schema(7, "orders-value") for _ in range(3)]

    assert [schema.text if schema else None for schema in found] == ['"string"'] * 3
    assert len(server.asked) == 1


@pytest.mark.parametrize("timeout", [0.2, "0.2"], ids=["a number", "a text"])
def test_numbers_of_a_connection_reach_the_client_as_numbers(
    monkeypatch: pytest.MonkeyPatch, timeout: object
) -> None:
    extra = {"timeout": timeout, "max.retries": 0, "cache.capacity": 7, "retries.wait.ms": "1"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        registry = SchemaRegistry(connect(monkeypatch, host="127.0.0.1", port=port, extra=extra))
        started = time.monotonic()

        with pytest.raises(RegistryUnavailableError):
            registry.find_schema(1, "orders-value")

    assert time.monotonic() - started < 10 * 0.5


@pytest.mark.parametrize("value", ["soon", "NaN", -1, True])
def test_a_setting_that_is_no_number_is_named(
    monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    config = connect(monkeypatch, host="127.0.0.1", extra={"max.retries": value})

    with pytest.raises(ConfigurationError, match=r"max\.retries is not a number"):
        SchemaRegistry(config)
