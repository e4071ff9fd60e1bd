"""By what Kafka, the catalog and a schema registry know who asks: read from the connections.

Nothing is asked of them: whether they refuse a stranger only their own administrators can say.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from frazil.connections import find_registry_config, is_secret
from frazil.errors import ConnectionMissingError
from frazil.payloads import BY_REGISTRY
from frazil.workspace import Workspace

_OWN_CREDENTIALS = frozenset({"glue", "dynamodb", "bigquery"})
"""Catalog types that nobody reaches without the cloud's own credentials."""

_CERTIFICATES = ("ssl.certificate.", "ssl.keystore.", "ssl.client.cert")
_REGISTRY_USERS = ("basic.auth.", "bearer.auth.", *_CERTIFICATES)


@dataclass(frozen=True)
class Access:
    """How one part is asked; `is_known` says whether it can tell who asks."""

    text: str
    is_known: bool


def read_access(work: Workspace) -> tuple[Access, ...]:
    """Read how each part is asked that the stream uses: Kafka, the catalog, its registries."""
    stream = work.stream
    sections = [part for part in (stream.value, stream.key) if part.convert in BY_REGISTRY]
    registries = dict.fromkeys(part.registry for part in sections)
    return (
        describe_kafka(work.kafka_config),
        describe_catalog(work.store.preset.properties),
        *(_describe_connection(name) for name in registries),
    )


def describe_kafka(config: Mapping[str, str]) -> Access:
    """Tell how a cluster is asked, by librdkafka's settings; TLS alone names only the broker."""
    protocol = config.get("security.protocol", "PLAINTEXT").upper()
    if protocol.startswith("SASL_"):
        mechanism = config.get("sasl.mechanism", config.get("sasl.mechanisms", "GSSAPI"))
        return Access(f"Kafka by {protocol} ({mechanism})", is_known=True)
    if protocol == "SSL" and _has_any(config, _CERTIFICATES):
        return Access("Kafka by SSL with a client certificate", is_known=True)
    without = " without a client certificate" if protocol == "SSL" else ""
    return Access(f"Kafka by {protocol}{without}, as anybody", is_known=False)


def describe_catalog(properties: Mapping[str, str]) -> Access:
    """Tell how a catalog is asked, by PyIceberg's properties."""
    kind, uri = properties.get("type", "rest"), properties.get("uri", "")
    if uri.startswith("sqlite:"):
        return Access("the catalog as a file, by its permissions", is_known=True)
    if kind in _OWN_CREDENTIALS or properties.get("rest.sigv4-enabled", "").lower() == "true":
        return Access(f"the catalog ({kind}) by the cloud's credentials", is_known=True)
    if any(is_secret(key, value) for key, value in properties.items() if "s3." not in key):
        return Access(f"the catalog ({kind}) with credentials", is_known=True)
    return Access(f"the catalog ({kind}) without credentials, as anybody", is_known=False)


def describe_registry(config: Mapping[str, str]) -> Access:
    """Tell how a schema registry is asked, by the settings of its client."""
    if _has_any(config, _REGISTRY_USERS) or is_secret("url", config.get("url", "")):
        return Access("the schema registry with credentials", is_known=True)
    return Access("the schema registry without credentials, as anybody", is_known=False)


def _describe_connection(name: str) -> Access:
    try:
        return describe_registry(find_registry_config(name))
    except ConnectionMissingError:
        return Access(f"the schema registry not at all: {name} is not defined", is_known=False)


def _has_any(config: Mapping[str, str], beginnings: tuple[str, ...]) -> bool:
    return any(key.startswith(beginnings) and value for key, value in config.items())
