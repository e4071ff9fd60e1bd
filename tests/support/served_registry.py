"""A schema registry as a small server in the test's own process."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

from support.http_server import Request, serve_http
from support.lake import make_stream

from frazil.kafka.schema_registry import SchemaRegistry
from frazil.schemas.payloads import Payload
from frazil.schemas.wire_format import WireFormat

NO_SCHEMAS = WireFormat(format="avro", has_schema_id=True, schemas=())
Subjects = Mapping[str, Mapping[str, object]]
"""Subject, with its context, to the answer for its only version."""


@contextmanager
def serve(subjects: Subjects, *, by_subject: bool = False) -> Iterator[SchemaRegistry]:
    """Serve schemas by subject, and by id in the context of a subject.

    With `by_subject` a subject finds its own ids only, as in some registries.
    """

    def find_by_id(number: int, subject: str) -> Mapping[str, object] | None:
        context = subject.rpartition(":")[0]
        fitting = [s for s in subjects if s.rpartition(":")[0] == context]
        fitting = [s for s in fitting if not (by_subject and subject) or s == subject]
        return next((subjects[s] for s in fitting if subjects[s]["id"] == number), None)

    def find(path: str, subject: str) -> object | None:
        match path.strip("/").split("/"):
            case ["schemas", "ids", number]:
                return find_by_id(int(number), subject)
            case ["subjects", name, "versions"]:
                return [1] if unquote(name) in subjects else None
            case ["subjects", name, "versions", _]:
                found = subjects.get(unquote(name))
                return {"subject": unquote(name), "version": 1, **found} if found else None
        return None

    def answer(request: Request) -> tuple[int, bytes]:
        parts = urlsplit(request.path)
        found = find(parts.path, parse_qs(parts.query).get("subject", [""])[0])
        if found is None:
            return 404, b'{"error_code": 40403, "message": "not found"}'
        return 200, json.dumps(found).encode()

    with serve_http(answer) as address:
        yield SchemaRegistry({"url": f"http://{address}"})


def make_payload(subject: str, columns: Mapping[str, str]) -> Payload:
    value = {"convert": "by_schema_id", "subject": subject, "columns": dict(columns)}
    return Payload(make_stream(value=value), "value")
