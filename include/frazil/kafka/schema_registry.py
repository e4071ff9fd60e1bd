"""A schema registry with Confluent's API: schemas by id and by subject. No policy.

A registry may have contexts, and each of them numbers its schemas from 1: only together with a
subject, such as `:.shop:orders-value`, does an id name one schema.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, cast
from urllib.parse import urlsplit

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from frazil.connections.causes import NOT_OF_A_REGISTRY, Cause, explain_error, explain_text
from frazil.errors import ConfigurationError, RegistryUnavailableError

_PATIENCE = {"timeout": 10, "max.retries": 3, "retries.wait.ms": 200, "retries.max.wait.ms": 2000}
"""Timeout and retries of one request; Airflow may retry the whole task in addition."""

_NUMBERS = frozenset({*_PATIENCE, "cache.capacity", "cache.latest.ttl.sec"})
"""Settings that the client takes as numbers; a connection's extra holds texts."""

_SERIALIZED = "serialized"
"""Requests Protobuf schemas as descriptors, which need no compiler; registries may ignore it."""

_UNKNOWN = frozenset({40401, 40402, 40403})
"""Error codes for an unknown subject, version or schema; any other 404 is a failed request."""

_REFUSALS: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "Unauthorized",
    HTTPStatus.FORBIDDEN: "Forbidden",
}
_ELSEWHERE = frozenset({HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.NOT_FOUND})
"""Statuses of other servers, of a wrong path, or of a proxy that shows a page to log in."""

_CONTEXT = re.compile(r":(\.[^:]*):")
"""The context in front of a subject; `:.:` is the default one."""

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True)
class Registered:
    """One registered schema; `references` are pairs of name and text of the schemas it imports."""

    id: int
    type: SchemaType
    text: str
    references: tuple[tuple[str, str], ...] = ()


def _parse_numbers(config: Mapping[str, str]) -> dict[str, str | float]:
    """Return the client's settings with numbers where it requires them.

    Raises:
        ValueError: a setting is not a number; the message names it.
    """
    parsed: dict[str, str | float] = dict(config)
    for name in sorted(_NUMBERS & {*config}):
        try:
            number = float(config[name])
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= 0):
            message = f"{name} is not a number of at least 0"
            raise ValueError(message)
        parsed[name] = number
    return parsed


def _find_context(subject: str) -> str:
    """Return the context in front of a subject, as `:.shop:`; empty for the default context."""
    match = _CONTEXT.match(subject)
    return match[0] if match and match[1] != "." else ""


def _list_references(schema: Schema, context: str) -> list[tuple[str, str, int]]:
    """List name, subject and version of what a schema refers to, the last one first.

    A subject without a context is in that of its referrer.
    """
    return [
        (each.name, s if _CONTEXT.match(s) else context + s, each.version)
        for each in reversed(schema.references or ())
        if each.name and (s := each.subject) and each.version
    ]


def _split_addresses(url: str) -> tuple[str, str]:
    """Return the addresses for the client, and as errors show them, without users and passwords.

    The client tries those that commas separate in turn.

    Raises:
        ConfigurationError: one has no valid scheme, host or port; what is wrong may be a part of a
            password.
    """
    texts = [text.strip() for text in url.split(",") if text.strip()]
    try:
        shown = [_show_address(text) for text in texts]
    except ValueError:
        shown = []
    if not shown:
        raise ConfigurationError(
            "the address of the schema registry has no valid scheme, host and port",
            "write it as `https://HOST:PORT`, several with commas between them, and login and "
            "password in fields of their own",
        )
    return ",".join(texts), ", ".join(shown)


def _show_address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError
    return f"{parts.scheme}://{parts.hostname}:{parts.port or ''}".rstrip(":")


class SchemaRegistry:
    """Client of one schema registry; schemas by id or version are cached."""

    def __init__(self, config: Mapping[str, str]) -> None:
        """Store the client's settings; the connection is opened by the first request.

        Raises:
            ConfigurationError: the client refuses a setting.
        """
        url, self._address = _split_addresses(config["url"])
        try:
            settings = {**_PATIENCE, **_parse_numbers(config), "url": url}
            self._client = SchemaRegistryClient(settings)
        except (ValueError, TypeError, OSError) as error:
            raise ConfigurationError(
                f"settings for the schema registry at {self._address}: {error}",
                "correct the connection's extra; it takes the settings of confluent-kafka's client",
            ) from error

    def find_schema(self, schema_id: int, subject: str) -> Registered | None:
        """Find a schema by its id in the context of a subject; None if the registry has none.

        Registries differ on the schema of another subject: some find it, others return only a
        subject's own schemas. In the default context the id alone is therefore tried too.

        Raises:
            RegistryUnavailableError: it did not answer.
        """
        scopes = (subject,) if _find_context(subject) else (subject, None)
        with self._translated(f"asking for schema {schema_id} of subject {subject}"):
            for scope in scopes:
                try:
                    schema = self._client.get_schema(schema_id, scope, fmt=_SERIALIZED)
                except SchemaRegistryError as error:
                    if error.error_code not in _UNKNOWN:
                        raise
                else:
                    return self._complete(schema_id, schema, subject)
        return None

    def list_schemas(self, subject: str) -> tuple[Registered, ...]:
        """List the schemas of a subject, oldest first, without deleted versions.

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
            return tuple(self._complete(cast("int", f.schema_id), f.schema, subject) for f in found)

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
            return self._complete(cast("int", found.schema_id), found.schema, subject)

    def probe(self) -> str:
        """Request the list of subjects and return their number as text.

        Raises:
            RegistryUnavailableError: it did not answer.
        """
        with self._translated("listing its subjects"):
            subjects: object = self._client.get_subjects()
            if not isinstance(subjects, list):
                raise TypeError(NOT_OF_A_REGISTRY)
            return f"{len(subjects)} subjects"

    def _complete(self, schema_id: int, schema: Schema, subject: str) -> Registered:
        """Return a schema with all schemas that it references, dependencies first, each once."""
        if not schema.schema_str:
            raise ValueError(NOT_OF_A_REGISTRY)
        found = self._collect(schema, _find_context(subject))
        kind = cast("SchemaType", (schema.schema_type or "AVRO").upper())
        return Registered(schema_id, kind, schema.schema_str, tuple(found.items()))

    def _collect(self, schema: Schema, context: str) -> dict[str, str]:
        """Return the referenced schemas by name, each behind those that it refers to itself."""
        found: dict[str, str] = {}
        texts: dict[str, str] = {}
        waiting = _list_references(schema, context)
        while waiting:
            name, subject, version = waiting[-1]
            if name in texts:
                waiting.pop()
                found.setdefault(name, texts[name])
                continue
            try:
                inner = self._client.get_version(subject, version, deleted=True, fmt=_SERIALIZED)
            except SchemaRegistryError as error:
                if error.error_code not in _UNKNOWN:
                    raise
                raise RegistryUnavailableError(
                    f"schema registry at {self._address}: a schema refers to version {version} of "
                    f"subject {subject}, which the registry does not have",
                    "register it again, or restore it; nothing was staged, the next run tries the "
                    "same range again",
                ) from error
            texts[name] = inner.schema.schema_str or ""
            waiting += _list_references(inner.schema, _find_context(subject))
        return found

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Translate the client's errors into Frazil's, without credentials that they may quote."""
        at = f"schema registry at {self._address}: {doing}"
        try:
            yield
        except SchemaRegistryError as error:
            status = error.http_status_code
            text = NOT_OF_A_REGISTRY if status in _ELSEWHERE else error.error_message or ""
            cause = explain_text("registry", _REFUSALS.get(status, text))
            raise self._unavailable(f"{at}: it answered {status}", cause, error) from error
        except (httpx2.HTTPError, OAuthTokenError, ValueError, TypeError) as error:
            # The client raises the last two for JSON of another server.
            cause = explain_error("registry", error)
            raise self._unavailable(at, cause, error) from error

    @staticmethod
    def _unavailable(at: str, cause: Cause | None, error: Exception) -> RegistryUnavailableError:
        """Build the error; a refusal's text may quote credentials."""
        again = "nothing was staged, the next run tries the same range again"
        refused = isinstance(error, SchemaRegistryError) and error.http_status_code in _REFUSALS
        text = error.error_message if isinstance(error, SchemaRegistryError) else error
        detail = "" if refused else f" ({type(error).__name__}: {text})"
        if cause is None:
            step = "run `frazil doctor`, or `frazil stack up --with registry` for the embedded one"
            return RegistryUnavailableError(f"{at}{detail}", f"{step}; {again}")
        return RegistryUnavailableError(
            f"{at}: {cause.sentence}{detail}", f"{cause.next_step}; {again}"
        )
