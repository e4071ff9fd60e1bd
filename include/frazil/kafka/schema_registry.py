"""A schema registry with Confluent's API: schemas by id and by subject. No policy here."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, cast
from urllib.parse import urlsplit

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from frazil.errors import ConfigurationError, RegistryUnavailableError

_PATIENCE = {"timeout": 10, "max.retries": 3, "retries.wait.ms": 200, "retries.max.wait.ms": 2000}
"""The client's own retries, below which a task's retries lie."""


_SERIALIZED = "serialized"
"""A registry that can gives Protobuf as a descriptor, so that nothing here has to compile it."""


_UNKNOWN = frozenset({40401, 40402, 40403})
"""The API's own codes for no such subject, version and schema; any other 404 is no answer."""


SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True)
class Registered:
    """One registered schema, with the schemas that it refers to by the names it uses for them."""

    id: int
    type: SchemaType
    text: str
    references: tuple[tuple[str, str], ...] = ()


class SchemaRegistry:
    """Ask one schema registry; what it answered by id or by version is asked once."""

    def __init__(self, config: Mapping[str, str]) -> None:
        """Keep the client's settings; nothing connects before the first question.

        Raises:
            ConfigurationError: a setting that the client does not know or accept.
        """
        # An address may carry a user and a password; neither belongs into an error.
        parts = urlsplit(config["url"])
        self._address = f"{parts.scheme}://{parts.hostname}:{parts.port or ''}".rstrip(":")
        try:
            self._client = SchemaRegistryClient({**_PATIENCE, **config})
        except (ValueError, TypeError, OSError) as error:
            raise ConfigurationError(
                f"settings for the schema registry at {self._address}: {error}",
                "correct the connection's extra; it takes the settings of confluent-kafka's client",
            ) from error

    def find_schema(self, schema_id: int) -> Registered | None:
        """Find a schema by its id; None if the registry does not know it.

        Raises:
            RegistryUnavailableError: it did not answer.
        """
        with self._translated(f"asking for schema {schema_id}"):
            try:
                schema = self._client.get_schema(schema_id, fmt=_SERIALIZED)
            except SchemaRegistryError as error:
                if error.error_code in _UNKNOWN:
                    return None
                raise
            return self._complete(schema_id, schema)

    def list_schemas(self, subject: str) -> tuple[Registered, ...]:
        """List the schemas of a subject, the oldest first; deleted versions are not there.

        Raises:
            RegistryUnavailableError: it did not answer.
        """
        with self._translated(f"listing the versions of subject {subject}"):
            try:
                versions = self._client.get_versions(subject)
            except SchemaRegistryError as error:
                if error.error_code in _UNKNOWN:
                    return ()
                raise
            found = [self._client.get_version(subject, v, fmt=_SERIALIZED) for v in versions]
            return tuple(self._complete(cast("int", f.schema_id), f.schema) for f in found)

    def find_latest(self, subject: str) -> Registered | None:
        """Find the newest schema of a subject; None if there is no such subject.

        Raises:
            RegistryUnavailableError: it did not answer.
        """
        with self._translated(f"asking for the newest version of subject {subject}"):
            try:
                found = self._client.get_version(subject, "latest", fmt=_SERIALIZED)
            except SchemaRegistryError as error:
                if error.error_code in _UNKNOWN:
                    return None
                raise
            return self._complete(cast("int", found.schema_id), found.schema)

    def probe(self) -> str:
        """Ask for the subjects and say how many there are.

        Raises:
            RegistryUnavailableError: it did not answer.
        """
        with self._translated("listing its subjects"):
            return f"{len(self._client.get_subjects())} subjects"

    def _complete(self, schema_id: int, schema: Schema) -> Registered:
        """Fetch what a schema refers to, the deepest first, each once."""
        found: dict[str, str] = {}
        self._collect(schema, found)
        kind = cast("SchemaType", schema.schema_type or "AVRO")
        return Registered(schema_id, kind, schema.schema_str or "", tuple(found.items()))

    def _collect(self, schema: Schema, found: dict[str, str]) -> None:
        for reference in schema.references or ():
            name, subject, version = reference.name, reference.subject, reference.version
            if name and subject and version and name not in found:
                inner = self._client.get_version(subject, version, deleted=True, fmt=_SERIALIZED)
                self._collect(inner.schema, found)
                found[name] = inner.schema.schema_str or ""

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Turn the client's errors into ours, without what they may quote of credentials."""
        step = (
            "`frazil doctor` checks the registry, `frazil stack up --with registry` starts the "
            "embedded one; nothing was staged, the next run tries the same range again"
        )
        at = f"schema registry at {self._address}: {doing}"
        try:
            yield
        except SchemaRegistryError as error:
            refused = error.http_status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
            if refused:
                step = "check login, password or token of the registry's connection, then run again"
            raise RegistryUnavailableError(
                f"{at}: it answered {error.http_status_code}"
                + ("" if refused else f": {error.error_message}"),
                step,
            ) from error
        except (httpx.HTTPError, OAuthTokenError) as error:
            raise RegistryUnavailableError(
                f"{at}: {type(error).__name__}: {error}", step
            ) from error
