"""A file is an orphan only when it is a day old and nobody uses it under any spelling."""

import pytest

from frazil.errors import ConfigurationError, TableError
from frazil.maintenance.orphans import (
    decide_cutoff_ms,
    needs_prefix_listing,
    normalize_path,
    require_no_live_file,
)
from frazil.streams.timestamps import DAY_MS


def test_files_younger_than_a_day_are_never_orphans() -> None:  # F4
    assert decide_cutoff_ms(10 * DAY_MS, DAY_MS) == 9 * DAY_MS

    with pytest.raises(ConfigurationError, match="24 hours"):
        decide_cutoff_ms(10 * DAY_MS, DAY_MS - 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:/lake/a.parquet", "file:///lake/a.parquet"),
        ("file:/lake/a.parquet", "/lake/a.parquet"),
        ("s3a://bucket/a.parquet", "s3://bucket/a.parquet"),
        ("file:/lake/k=a?b#c:d/a.parquet", "/lake/k=a?b#c:d/a.parquet"),
    ],
)
def test_a_live_file_is_known_under_every_spelling(one: str, other: str) -> None:
    assert normalize_path(one) == normalize_path(other)

    with pytest.raises(TableError, match="nothing was deleted"):
        require_no_live_file("t", [one], [other])


@pytest.mark.parametrize(
    "other", ["file:///lake/k=a?b/z.parquet", "s3://lake/k=a?b/a.parquet", "/k=a?b/a.parquet"]
)
def test_another_file_is_another_file(other: str) -> None:
    live = "file:/lake/k=a?b/a.parquet"

    assert normalize_path(live) != normalize_path(other)
    assert require_no_live_file("t", [live], [other]) is None


def test_object_stores_are_listed_by_icebergs_own_client() -> None:
    assert needs_prefix_listing("s3://bucket/lake/t")
    assert not needs_prefix_listing("file:///lake/t")
    assert not needs_prefix_listing("/lake/t")
