"""Table properties that a stream file may not set, because a writer or reader of Frazil fails."""

import re
from collections.abc import Mapping

from frazil.streams.column_types import FieldError

ALLOWED: Mapping[str, tuple[frozenset[str], str]] = {
    "format-version": (frozenset({"2"}), "must be 2, the only one that is supported"),
    "write.format.default": (
        frozenset({"parquet"}),
        "must be parquet: the fast path, erasure and replay write and read Parquet files only",
    ),
    "gc.enabled": (
        frozenset({"true"}),
        "must be true: maintenance could expire no snapshot and remove no orphan file",
    ),
    "write.distribution-mode": (
        frozenset({"none", "hash", "range"}),
        "must be none, hash or range, or Spark writes no batch",
    ),
    "write.parquet.compression-codec": (
        frozenset({"zstd", "gzip", "snappy", "lz4", "uncompressed"}),
        "must be zstd, gzip, snappy, lz4 or uncompressed, or Spark writes no batch",
    ),
}
"""Property → the values in lower case that work, and the reason."""

_NUMBERS = re.compile(r"(write|commit|history|read)\..*(-bytes|-ms|-max|\.num-retries|-to-keep)\Z")
"""Properties that Iceberg parses as whole numbers at each write."""


def validate_property(key: str, value: str) -> None:
    """Check one entry of `table.properties`.

    Raises:
        FieldError: the property is reserved, or its value would make later batches fail.
    """
    if key.startswith("frazil."):
        raise FieldError((key,), "properties frazil.* are reserved; remove it")
    if key == "history.expire.max-ref-age-ms":
        raise FieldError((key,), "would expire staging branches; remove it")
    fitting, reason = ALLOWED.get(key, (None, ""))
    if fitting is not None and value.lower() not in fitting:
        raise FieldError((key,), reason)
    if _NUMBERS.match(key) and not re.fullmatch(r"\d+", value, re.ASCII):
        raise FieldError((key,), "must be a whole number, or Iceberg writes no batch")
