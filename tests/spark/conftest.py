"""What tests with Spark share: a session of the stack's server, and a stream of their own."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Stack
from pyspark.sql import SparkSession
from support.lake import make_stream
from support.stack_lake import StackLake


@pytest.fixture(scope="module")
def spark(stack: Stack) -> Iterator[SparkSession]:
    """Open a session of the test's module on the stack's Spark Connect server."""
    address = str(stack.facts["spark_connect"]["url"])
    session: SparkSession = SparkSession.builder.remote(address).create()
    yield session
    session.stop()


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
