"""A Spark session in this process, for tests of functions that need no server."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession


@contextmanager
def local_spark(name: str, more: Mapping[str, str]) -> Iterator[SparkSession]:
    """Open a session of one core, and end it."""
    options = {
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        **more,
    }
    builder = SparkSession.builder.master("local[1]").appName(name)
    for key, value in options.items():
        builder = builder.config(key, value)
    with pytest.MonkeyPatch.context() as patch:
        # A Connect session of another test leaves its mode behind in this process.
        for variable in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):
            patch.delenv(variable, raising=False)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
