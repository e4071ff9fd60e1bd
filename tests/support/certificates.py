"""Certificates of a test's own: an authority, and what it signs."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Identity:
    """A certificate and its private key."""

    certificate: x509.Certificate
    private: rsa.RSAPrivateKey

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key(self, password: str = "", form: PrivateFormat = PrivateFormat.PKCS8) -> str:
        """Write the key as PEM; encrypted (PBES2, as OpenSSL does) with a password."""
        how = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.private.private_bytes(Encoding.PEM, form, how).decode()


def make_authority(name: str = "authority") -> Identity:
    """Create a certificate that may sign others."""
    private = rsa.generate_private_key(65537, 2048)
    return Identity(_sign(_name(name), private, None, 30), private)


def issue(authority: Identity, name: str, days: int = 30) -> Identity:
    """Sign a certificate for 127.0.0.1 and localhost; it expired for a negative number of days."""
    private = rsa.generate_private_key(65537, 2048)
    return Identity(_sign(_name(name), private, authority, days), private)


def _sign(
    name: x509.Name, private: rsa.RSAPrivateKey, authority: Identity | None, days: int
) -> x509.Certificate:
    now = datetime.now(UTC)
    issuer = authority.certificate.subject if authority else name
    signer = authority.private if authority else private
    alternatives = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
    return (
        x509.CertificateBuilder(issuer, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), True)  # noqa: FBT003
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), False)  # noqa: FBT003
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
