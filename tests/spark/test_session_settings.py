"""Settings of a request in a session: set where they are not known, secrets only for a moment."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from frazil_spark.session_settings import apply_settings

pytestmark = [pytest.mark.spark, pytest.mark.stack]

SHOWN, SECRET = "spark.sql.catalog.planted.type", "spark.sql.catalog.planted.token"
STATIC = "spark.sql.warehouse.dir"


def test_a_setting_that_changed_is_set_again(spark: SparkSession) -> None:
    for value in ("1", "1", "2"):
        apply_settings(spark, {"spark.sql.shuffle.partitions": value})

        assert spark.conf.get("spark.sql.shuffle.partitions") == value


def test_a_refused_setting_leaves_no_secret_in_the_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://the-session-is-open-already")

    with pytest.raises(PySparkException, match=STATIC):
        apply_settings(spark, {SHOWN: "rest", SECRET: "planted", STATIC: "/elsewhere"})

    assert SECRET not in spark.conf.getAll
    spark.conf.unset(SHOWN)
