"""The table of cells in docs/connections.md has the cells of `make conformance`."""

from base64 import b64encode
from pathlib import Path

import pytest
from conformance.cells import CELLS
from conformance.planted import holds_secret

PAGE = Path(__file__).parents[2] / "docs/connections.md"


def test_the_page_describes_each_cell_and_no_other() -> None:
    table = PAGE.read_text().split("\n| cell |", 1)[1].split("\n\n", 1)[0]
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in table.splitlines()[2:]]

    assert [row[:6] for row in rows] == [
        [f"`{cell.name}`", cell.kafka, cell.catalog, cell.storage, cell.spark, cell.executor]
        for cell in CELLS
    ]
    assert all(row[6].startswith(("tested ", "imitation ", "not run")) for row in rows)


@pytest.mark.parametrize("login", ["", "me:", "conformance:", "an operator:"])
def test_a_secret_is_found_in_an_authorization_header_too(login: str) -> None:
    header = b64encode(f"{login}planted-catalog-secret".encode())

    assert holds_secret(b"Authorization: Basic " + header)
    assert not holds_secret(b64encode(f"{login}another-secret".encode()))
