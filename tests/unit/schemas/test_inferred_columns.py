"""The key of change events is read from the first schema in the topic's keys."""

import json

import pytest
from support.lake import make_stream

from frazil.errors import SchemaMisfitError
from frazil.schemas.inferred_columns import choose_key_fields

GOOD = json.dumps({"schema": {"fields": [{"field": "id"}, {"field": "shop"}]}, "payload": {}})
STRANGE = [
    *('{"schema":{"fields":5}}', '{"schema":{"fields":true}}', '{"schema":{"fields":1.5}}'),
    *('{"schema":{"fields":"id"}}', '{"schema":{"fields":{"field":"id"}}}', '{"schema":[1]}'),
    *('{"schema":{"fields":[5]}}', '{"schema":{"fields":[{"field":5}]}}', '{"schema":null}'),
    *('{"schema":{"fields":[{"field":"id"},5]}}', '{"schema":{"fields":[]}}', "5", "[]", "null"),
    *("[" * 100_000, '{"schema":' * 100_000, "id=1", "", "\x00"),
]


@pytest.mark.parametrize("text", STRANGE, ids=[text[:40] for text in STRANGE])
def test_a_strange_key_has_no_schema(text: str) -> None:
    with pytest.raises(SchemaMisfitError, match="the first key of orders-0 has no schema"):
        choose_key_fields(make_stream(), [("orders-0", text.encode())])


@pytest.mark.parametrize("text", STRANGE, ids=[text[:40] for text in STRANGE])
def test_a_key_with_a_schema_behind_strange_ones_is_found(text: str) -> None:
    keys = [("orders-0", text.encode()), ("orders-0", b"\xff"), ("orders-1", GOOD.encode())]

    assert choose_key_fields(make_stream(), keys) == ("id", "shop")


def test_without_a_key_there_are_no_fields() -> None:
    assert choose_key_fields(make_stream(), []) == ()
