"""What the tests of tables share: a lake of their own, and a publish loop that does not wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import stamina
from lake import Lake, make_stream

from frazil.turns import MAX_TURNS


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Give a fresh catalog with the stream `orders` begun at offset 0 of two partitions."""
    lake = Lake(tmp_path, make_stream())
    lake.begin()
    with stamina.set_testing(True, attempts=MAX_TURNS, cap=True):
        yield lake
    lake.catalog.close()
