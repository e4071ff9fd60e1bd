"""What the tests of maintenance share: a stream of their own in the running stack."""

import secrets
from pathlib import Path

import pytest
from conftest import Stack
from support.lake import make_stream
from support.stack_lake import StackLake


@pytest.fixture
def lake(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackLake:
    """Begin a stream in the running stack; PyIceberg stages, Spark maintains."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    name = f"m{secrets.token_hex(4)}"
    lake = StackLake(
        tmp_path,
        make_stream(name, source={"topic": "orders"}, table={"name": f"maintained.{name}"}),
    )
    lake.begin()
    return lake
