"""A client's certificate and key, in any form that librdkafka reads, reach Java unencrypted."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from support.certificates import Identity, issue, make_authority

from frazil.errors import ConfigurationError
from frazil.kafka.pem_files import read_certificates, read_client_key

PASSWORD = "sésame"  # noqa: S105 - of a test


@pytest.fixture(scope="module")
def authority() -> Identity:
    return make_authority()


@pytest.fixture(scope="module")
def client(authority: Identity) -> Identity:
    return issue(authority, "jane")


@pytest.mark.parametrize("password", ["", PASSWORD], ids=["plain", "encrypted"])
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("by", ["location", "pem"])
def test_a_key_of_any_form_becomes_pkcs8(
    client: Identity, tmp_path: Path, password: str, form: PrivateFormat, by: str
) -> None:
    texts = {"certificate": client.pem, "key": client.key(password, form)}
    settings = {"other": "stays"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        settings[f"ssl.{name}.{by}"] = text if by == "pem" else str(tmp_path / name)
    settings |= {"ssl.key.password": password} if password else {}

    found = read_client_key(settings, "Kafka")

    assert found is not None
    assert found.chain == client.pem
    assert found.key.startswith("-----BEGIN PRIVATE KEY-----")
    private = load_pem_private_key(found.key.encode(), None)
    assert private.public_key() == client.private.public_key()
    assert settings == {"other": "stays"}
    assert "PRIVATE" not in repr(found)


def test_a_pkcs12_file_is_read_whole(client: Identity, authority: Identity, tmp_path: Path) -> None:
    how = BestAvailableEncryption(PASSWORD.encode())
    content = pkcs12.serialize_key_and_certificates(
        b"jane", client.private, client.certificate, [authority.certificate], how
    )
    (tmp_path / "c.p12").write_bytes(content)
    settings = {
        "ssl.keystore.location": str(tmp_path / "c.p12"),
        "ssl.keystore.password": PASSWORD,
    }

    found = read_client_key(settings, "Kafka")

    assert found is not None
    assert found.chain == client.pem + authority.pem
    assert settings == {}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ssl.key.password": "wrong", "ssl.key.pem": "{encrypted}"}, "does not open it"),
        ({"ssl.key.pem": "{encrypted}"}, "it is encrypted"),
        ({"ssl.key.pem": "text"}, "it is not a PEM private key"),
        ({"ssl.key.location": "/none"}, "/none: No such file"),
        ({"ssl.key.location": "{folder}"}, "Is a directory"),
        ({"ssl.keystore.location": "{folder}/ca.pem"}, "not PKCS #12 of that password"),
    ],
)
def test_what_cannot_be_read_is_named(
    client: Identity, tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    (tmp_path / "ca.pem").write_text(client.pem)
    known = {"encrypted": client.key(PASSWORD), "folder": str(tmp_path)}
    filled = {k: v.format(**known) for k, v in settings.items()}

    with pytest.raises(ConfigurationError, match=reason):
        read_client_key({"ssl.certificate.pem": client.pem, **filled}, "Kafka")


def test_a_file_of_key_and_certificate_gives_a_chain_without_the_key(
    client: Identity, authority: Identity, tmp_path: Path
) -> None:
    file = tmp_path / "client.pem"
    file.write_text(f"{client.key('', PrivateFormat.PKCS8)}{client.pem}{authority.pem}")
    settings = {f"ssl.{name}.location": str(file) for name in ("certificate", "key")}

    found = read_client_key(settings, "Kafka")
    trusted = read_certificates({"ssl.ca.location": str(file)}, "ssl.ca", "Kafka")

    assert found is not None
    assert found.chain == trusted == client.pem + authority.pem


def test_half_an_identity_is_refused(client: Identity) -> None:
    with pytest.raises(ConfigurationError, match=r"needs `ssl\.key\.location` too"):
        read_client_key({"ssl.certificate.pem": client.pem}, "Kafka")
    with pytest.raises(ConfigurationError, match=r"needs `ssl\.certificate\.location` too"):
        read_client_key({"ssl.key.pem": client.key()}, "Kafka")


def test_a_password_without_a_key_is_left_for_the_caller_to_refuse() -> None:
    settings = {"ssl.key.password": "x"}

    assert read_client_key(settings, "Kafka") is None
    assert settings == {"ssl.key.password": "x"}


def test_authorities_are_pem_and_written_once(client: Identity, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(client.pem)
    name = str(tmp_path / "ca.pem")

    assert read_certificates({"ssl.ca.location": name}, "ssl.ca", "Kafka") == client.pem
    assert read_certificates({}, "ssl.ca", "Kafka") == ""
    with pytest.raises(ConfigurationError, match="are both set"):
        read_certificates({"ssl.ca.location": name, "ssl.ca.pem": client.pem}, "ssl.ca", "Kafka")
    with pytest.raises(ConfigurationError, match="holds no PEM certificate"):
        read_certificates({"ssl.ca.pem": "probe"}, "ssl.ca", "Kafka")
