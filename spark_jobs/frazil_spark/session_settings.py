"""Settings of a request in the Spark session, of which secrets stay only as long as they must."""

import re
from collections.abc import Mapping

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
    for key, value in settings.items():
        if known.get(key) != value:
            spark.conf.set(key, value)
    found = {key: match for key in settings if (match := _CATALOG.fullmatch(key))}
    hidden = [key for key in found if re.search(_SECRET, key)]
    if not hidden or not is_remote():
        return
    before = spark.catalog.currentCatalog()
    try:
        for name in {match[1] for match in found.values()}:
            spark.catalog.setCurrentCatalog(name)
    finally:
        spark.catalog.setCurrentCatalog(before)
        for key in hidden:
            spark.conf.unset(key)
