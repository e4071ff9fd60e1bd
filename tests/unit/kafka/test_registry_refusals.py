"""What the registry's client says of a wrong connection, by real servers of each kind."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.certificates import Identity, issue, make_authority
from support.http_server import serve_http
from support.network import NO_ROUTE

from frazil.errors import RegistryUnavailableError
from frazil.kafka.schema_registry import SchemaRegistry

SUBJECTS, PAGE = b'["a"]', b"<html><body>Welcome</body></html>"
NO_REGISTRY = "the server at this address is not a registry"


@contextmanager
def serve(
    status: int, body: bytes, folder: Path, identity: Identity | None = None
) -> Iterator[str]:
    """Send one answer to all requests, over TLS with an identity; yield the address."""
    context = None
    if identity:
        (folder / "server.pem").write_text(identity.pem + identity.key())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
    with serve_http(lambda _: (status, body), context) as address:
        yield address


def ask(url: str, **config: str) -> list[str]:
    """Ask as `frazil doctor` does and as a plan does; return what both errors say."""
    registry = SchemaRegistry({"url": url, "max.retries": "0", **config})
    with pytest.raises(RegistryUnavailableError) as probed:
        registry.probe()
    with pytest.raises(RegistryUnavailableError) as planned:
        registry.find_schema(1, "orders-value")
    return [probed.value.facts, planned.value.facts]


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (401, PAGE, "the registry refuses the login, the password, the key or the token"),
        (403, PAGE, "the connection's user has no right to this in the registry"),
        (200, PAGE, NO_REGISTRY),
        (404, PAGE, NO_REGISTRY),
        (302, b"", NO_REGISTRY),
        (404, b'{"message": "no such page"}', NO_REGISTRY),
        (200, b'{"version": "1.0"}', NO_REGISTRY),
    ],
)
def test_an_answer_that_is_none_of_a_registry_names_its_cause(
    tmp_path: Path, status: int, body: bytes, sentence: str
) -> None:
    with serve(status, body, tmp_path) as address:
        told = ask(f"http://{address}")

    assert all(sentence in text for text in told), told


def test_another_authority_and_a_wrong_scheme_are_named(tmp_path: Path) -> None:
    authority = make_authority()
    (tmp_path / "other.pem").write_text(make_authority("other").pem)
    told: dict[str, list[str]] = {}
    with serve(200, SUBJECTS, tmp_path, issue(authority, "registry")) as address:
        other = {"ssl.ca.location": str(tmp_path / "other.pem")}
        told["not signed by an authority that is trusted"] = ask(f"https://{address}", **other)
        told["closes the connection without an answer"] = ask(f"http://{address}")
    with serve(200, SUBJECTS, tmp_path) as address:
        told["does not use TLS"] = ask(f"https://{address}")

    assert {s: tuple(s in text for text in texts) for s, texts in told.items()} == dict.fromkeys(
        told, (True, True)
    )


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "nothing listens at the registry's address"),
        (NO_ROUTE, "no route to the registry"),
        ("no-such-host.invalid:8081", "the registry's host name is unknown here"),
    ],
)
def test_an_address_without_a_server_is_named(address: str, sentence: str) -> None:
    told = ask(f"http://{address}")

    assert all(sentence in text for text in told), told
    assert all(address.partition(":")[0] in text for text in told)


def test_a_list_where_a_schema_belongs_is_an_error_of_the_registry(tmp_path: Path) -> None:
    with serve(200, SUBJECTS, tmp_path) as address:
        registry = SchemaRegistry({"url": f"http://{address}"})
        with pytest.raises(RegistryUnavailableError):
            registry.find_schema(1, "orders-value")
