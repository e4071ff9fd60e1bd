"""The registry behind TLS, stumbling, and asked twice: what lies between it and the client."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from frazil.errors import RegistryUnavailableError
from frazil.registry import SchemaRegistry

HOST = "127.0.0.1"
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
        if "/schemas/ids/8" in path:
            return 404, {"error_code": 40403, "message": "no such schema"}
        return 200, SCHEMA if "/schemas/ids/7" in path else ["orders-value"]


@contextmanager
def serve(tls: ssl.SSLContext | None = None, stumbles: int = 0) -> Iterator[Server]:
    """Serve on a free port, over TLS where a context is given."""
    registry = Server(stumbles)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = registry.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        registry.url = f"http{'s' if tls else ''}://{HOST}:{server.server_port}"
        yield registry
        server.shutdown()


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
        found = SchemaRegistry({"url": server.url}).find_schema(7)

    assert found is not None
    assert len(server.asked) == 3


def test_a_registry_that_stays_away_is_named_after_four_questions() -> None:
    with serve(stumbles=99) as server, pytest.raises(RegistryUnavailableError, match="503"):
        SchemaRegistry({"url": server.url}).find_schema(7)

    assert len(server.asked) == 4


def test_only_the_api_s_own_words_make_a_schema_unknown() -> None:
    with serve() as server:
        assert SchemaRegistry({"url": server.url}).find_schema(8) is None
        elsewhere = SchemaRegistry({"url": f"{server.url}/elsewhere"})
        for ask in (
            lambda: elsewhere.find_schema(8),
            lambda: elsewhere.find_latest("orders-value"),
            lambda: elsewhere.list_schemas("orders-value"),
        ):
            with pytest.raises(RegistryUnavailableError, match="it answered 404"):
                ask()


def test_a_schema_is_asked_for_once() -> None:
    with serve() as server:
        registry = SchemaRegistry({"url": server.url})
        found = [registry.find_schema(7) for _ in range(3)]

    assert [schema.text if schema else None for schema in found] == ['"string"'] * 3
    assert len(server.asked) == 1
