"""Settings of a request in the Spark session, of which secrets stay only as long as they must."""

import re
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from frazil.spark.redaction import REDACTION
from frazil_spark.job import is_remote

_CATALOG = re.compile(r"spark\.sql\.catalog\.([^.]+)(?:\..+)?")
_SECRET = REDACTION["spark.redaction.regex"]


def apply_settings(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Set a request's settings; on a Connect server open its catalogs, and unset their secrets.

    A catalog reads its settings once, when the session opens it. Spark writes a session's settings
    to the events of each of its jobs, and redacts there only those that the server has, too.
    Settings that the session has already are not set: each would be a request to the server.
    """
    known = spark.conf.getAll
    found = {key: match for key in settings if (match := _CATALOG.fullmatch(key))}
    hidden = [key for key in found if re.search(_SECRET, key)] if is_remote() else []
    try:
        for key, value in settings.items():
            if known.get(key) != value:
                spark.conf.set(key, value)
        if hidden:
            _open_catalogs(spark, {match[1] for match in found.values()})
    finally:
        for key in hidden:
            spark.conf.unset(key)


def _open_catalogs(spark: SparkSession, names: Iterable[str]) -> None:
    before = spark.catalog.currentCatalog()
    try:
        for name in names:
            spark.catalog.setCurrentCatalog(name)
    finally:
        spark.catalog.setCurrentCatalog(before)
