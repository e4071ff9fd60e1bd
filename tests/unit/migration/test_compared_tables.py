"""A side of a comparison that does not exist is told with a step that fits it."""

import pytest

from frazil.errors import MissingTableError
from frazil.migration.comparison import compare_tables
from frazil.migration.messages import CompareRequest
from frazil.workspace import Workspace


@pytest.mark.parametrize("name", ["demo.order", "a.b.c.d", " demo.order "])
def test_a_table_that_no_stream_fills_is_not_created_by_a_run(
    work: Workspace,  # noqa: ARG001 - its connections
    name: str,
) -> None:
    with pytest.raises(MissingTableError) as missing:
        compare_tables(CompareRequest(left="demo.orders", right=name), "run")

    assert f"has no table {name.strip()}" in missing.value.facts
    assert "check the name" in missing.value.next_step
    assert "connection iceberg_default" in missing.value.next_step


def test_blanks_around_a_name_are_no_part_of_it() -> None:
    request = CompareRequest(left=" orders", right=" demo.orders\n")

    assert (request.left, request.right) == ("orders", "demo.orders")
