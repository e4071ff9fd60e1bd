"""A table with a bootstrap and two batches, for each test to break."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.audited_table import Lake


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Publish a bootstrap and two batches: 0-0 to 20, 0-1 to 6; two letters, one record skipped."""
    lake = Lake(tmp_path_factory.mktemp("base"))
    lake.mark("bootstrap", rise=0)
    lake.ingest({0: (0, 10), 1: (0, 6)}, bad=(3, 4), skipped=(7,))
    lake.ingest({0: (10, 20)})
    return lake


@pytest.fixture
def lake(base: Lake, tmp_path: Path) -> Lake:
    """Return a table of the test's own; the files that it starts with are shared."""
    return Lake(tmp_path, base)
