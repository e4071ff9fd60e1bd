"""Certificates and keys of a Kafka connection as PEM texts, which travel to Spark by content.

librdkafka reads files; a Spark server on another machine does not have them. Kafka's Java client
reads PEM texts, but of private keys only unencrypted PKCS #8 (those encrypted by PBES2, as OpenSSL
writes them, fail with `PBES2 SecretKeyFactory not available`).
"""

import re
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from frazil.errors import ConfigurationError

_BEGIN = "-----BEGIN CERTIFICATE-----"
_CERTIFICATE = re.compile(f"{_BEGIN}.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True)
class ClientKey:
    """A client's certificate with its chain, and its private key, unencrypted."""

    chain: str
    key: str = field(repr=False)


def read_certificates(settings: MutableMapping[str, str], prefix: str, at: str) -> str:
    """Remove `<prefix>.pem` or `<prefix>.location` from the settings; return the certificates.

    A private key that is in the same file is left out.

    Raises:
        ConfigurationError: both are set, or the file has no certificate.
    """
    text = _read_text(settings, prefix, at)
    found = _CERTIFICATE.findall(text)
    if text and not found:
        raise ConfigurationError(
            f"{at}: `{prefix}` holds no PEM certificate",
            f"set `{prefix}.location` to a file with lines `{_BEGIN}`; convert others with "
            "`openssl x509 -in file.der -inform DER -out file.pem`",
        )
    return "".join(f"{each}\n" for each in found)


def read_client_key(settings: MutableMapping[str, str], at: str) -> ClientKey | None:
    """Remove the settings of a client's certificate and key; return both, None without them.

    Raises:
        ConfigurationError: one of both is missing, or the password does not open the key.
    """
    password = settings.pop("ssl.key.password", "")
    if "ssl.keystore.location" in settings:
        return _read_keystore(settings, at)
    chain = read_certificates(settings, "ssl.certificate", at)
    key = _read_text(settings, "ssl.key", at)
    if bool(chain) != bool(key):
        missing = "ssl.key.location" if chain else "ssl.certificate.location"
        raise ConfigurationError(
            f"{at}: a client certificate needs `{missing}` too",
            "set `ssl.certificate.location` and `ssl.key.location`, or `ssl.certificate.pem` and "
            "`ssl.key.pem`",
        )
    if not key:
        if password:
            settings["ssl.key.password"] = password  # no key: the caller refuses it by name
        return None
    return ClientKey(chain, _decrypt(key, password, at))


def _read_text(settings: MutableMapping[str, str], prefix: str, at: str) -> str:
    """Return a PEM text that is written in the settings or in a file, empty without both."""
    text, name = settings.pop(f"{prefix}.pem", ""), settings.pop(f"{prefix}.location", "")
    if text and name:
        raise ConfigurationError(
            f"{at}: `{prefix}.pem` and `{prefix}.location` are both set", "remove one of them"
        )
    if not name:
        return text
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a PEM text"
        raise ConfigurationError(
            f"{at}: `{prefix}.location` {name}: {reason}",
            "set it to a PEM file that this process can read",
        ) from error


def _decrypt(key: str, password: str, at: str) -> str:
    """Return a private key as unencrypted PKCS #8."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - few need it
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    secret = password.encode() if password and "ENCRYPTED" in key else None
    try:
        private = load_pem_private_key(key.encode(), secret)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            f"{at}: the private key of `ssl.key` cannot be read: {_explain(key, password)}",
            "correct `ssl.key.password`, or the file of `ssl.key.location`",
        ) from error
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _explain(key: str, password: str) -> str:
    if "ENCRYPTED" not in key:
        return "it is not a PEM private key"
    return "`ssl.key.password` does not open it" if password else "it is encrypted"


def _read_keystore(settings: MutableMapping[str, str], at: str) -> ClientKey:
    """Return certificate and key of a PKCS #12 file."""
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - few need it
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )

    name = settings.pop("ssl.keystore.location")
    password = settings.pop("ssl.keystore.password", "")
    try:
        content = Path(name).read_bytes()
        key, own, others = pkcs12.load_key_and_certificates(content, password.encode() or None)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not PKCS #12 of that password"
        raise ConfigurationError(
            f"{at}: `ssl.keystore.location` {name}: {reason}",
            "correct the file and `ssl.keystore.password`; a Java key store (JKS) is converted by "
            "`keytool -importkeystore -deststoretype PKCS12`",
        ) from error
    if key is None or own is None:
        raise ConfigurationError(
            f"{at}: `ssl.keystore.location` {name} has no private key with a certificate",
            "export both into the file",
        )
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in (own, *others))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return ClientKey(chain.decode(), pem.decode())
