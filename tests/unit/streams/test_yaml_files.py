"""YAML 1.1 reads some numbers as other ones than they look like; no stream file may have those."""

from pathlib import Path

import pytest
import yaml
from support.broken_streams import GOOD

from frazil.errors import StreamFileError
from frazil.streams.loading import load_streams_of
from frazil.streams.models import Stream


def load(folder: Path, old: str, new: str) -> Stream:
    """Load the good file with one of its lines changed."""
    assert GOOD.count(old) == 1
    path = folder / "orders.yaml"
    path.write_text(GOOD.replace(old, new))
    return load_streams_of(path)[0]


def line_of(text: str) -> int:
    """Return the line of a text in the good file."""
    return GOOD[: GOOD.index(text)].count("\n") + 1


@pytest.mark.parametrize("number", ["030", "0x1F", "0b101", "1:30", "-010", "0_7", "1:30.5"])
@pytest.mark.parametrize(
    ("old", "field"),
    [
        ("rollback_hours: 24", "maintenance.rollback_hours"),
        ("max_records: 1000", "batch.max_records"),
        ("max_bad_ratio: 0.05", "errors.max_bad_ratio"),
        ("suite: orders", "quality.suite"),
    ],
)
def test_a_number_that_yaml_reads_as_another_one_is_refused(
    tmp_path: Path, number: str, old: str, field: str
) -> None:
    with pytest.raises(StreamFileError) as caught:
        load(tmp_path, old, f"{old.partition(':')[0]}: {number}")

    assert f"orders.yaml:{line_of(old)}: {field}: YAML reads {number} as " in caught.value.facts
    assert "in decimal" in caught.value.facts
    assert "in quotes" in caught.value.facts


@pytest.mark.parametrize(
    ("start", "field", "reason"),
    [
        ("{offsets: {0: 010}}", "source.start.offsets.0", "YAML reads 010 as the number 8"),
        ("{offsets: {0x1: 5}}", "source.start.offsets.0x1", "YAML reads 0x1 as the number 1"),
        ("{offsets: {0: 1, 00: 2}}", "source.start.offsets.00", "duplicate key, first in line 5"),
        ("{offsets: {0: 1, 0.0: 2}}", "source.start.offsets.0.0", "duplicate key, first in line"),
        ("{offsets: {8: 1, +8: 2}}", "source.start.offsets.+8", "duplicate key, first in line 5"),
        ('{offsets: {0: 1, "0": 2}}', "source.start.offsets.0", "duplicate key, first in line 5"),
        ("{offsets: {8: 1, 08: 2}}", "source.start.offsets", "the same partition"),
        ('{offsets: {0: 1, "00": 2}}', "source.start.offsets", "the same partition"),
        ("{offsets: {0: true}}", "source.start.offsets.0", "not a boolean (found True)"),
        (f"{{offsets: {{0: {2**63}}}}}", "source.start.offsets.0", "less than or equal to"),
        ("{timestamp: 1:30}", "source.start.timestamp", "YAML reads 1:30 as the number 90"),
    ],
)
def test_a_partition_has_one_offset_as_it_is_written(
    tmp_path: Path, start: str, field: str, reason: str
) -> None:
    with pytest.raises(StreamFileError) as caught:
        load(tmp_path, "start: earliest", f"start: {start}")

    lines = [each for each in caught.value.facts.splitlines() if reason in each]
    assert lines
    assert lines[0].partition("orders.yaml:")[2].startswith(f"5: {field}: ")


@pytest.mark.parametrize("flag", ["true", "False", "yes", "off"])
@pytest.mark.parametrize(
    "field",
    [
        *("batch.max_records", "batch.catch_up_records", "batch.max_bytes_per_second"),
        *("errors.max_bad_ratio", "errors.max_bad_records", "freshness.warn_seconds"),
        *("freshness.fail_seconds", "maintenance.compact_target_mb", "maintenance.expire_hours"),
        *("maintenance.rollback_hours", "maintenance.orphan_days"),
        *("maintenance.expire_rows.keep_days", "changes.keep_days"),
    ],
)
def test_a_boolean_is_no_number(tmp_path: Path, field: str, flag: str) -> None:
    section, _, rest = field.partition(".")
    option, _, inner = rest.partition(".")
    content = yaml.safe_load(GOOD)
    value = {"column": "at", inner: flag} if inner else flag
    content[section] = {**content.get(section, {}), option: value}
    path = tmp_path / "orders.yaml"
    path.write_text(yaml.safe_dump(content).replace(f"'{flag}'", flag))

    with pytest.raises(StreamFileError, match=rf"{field}: .*not a boolean \(found (True|False)\)"):
        load_streams_of(path)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("rollback_hours: 24", "rollback_hours: 0", 0),
        ("rollback_hours: 24", "rollback_hours: +30", 30),
        ("rollback_hours: 24", "rollback_hours: 1_000", 1000),
        ("max_bad_ratio: 0.05", "max_bad_ratio: 0.5", 0.5),
        ("max_bad_ratio: 0.05", "max_bad_ratio: 1e-3", 0.001),
        ("max_bad_ratio: 0.05", "max_bad_ratio: 5.0e-2", 0.05),
        ("max_bad_ratio: 0.05", "max_bad_ratio: 1", 1),
    ],
)
def test_a_plain_number_is_what_it_looks_like(
    tmp_path: Path, old: str, new: str, value: float
) -> None:
    stream = load(tmp_path, old, new)

    found = {"rollback_hours": stream.maintenance.rollback_hours}
    found |= {"max_bad_ratio": stream.errors.max_bad_ratio}
    assert found[old.partition(":")[0]] == value


def test_a_text_in_quotes_may_look_like_any_number(tmp_path: Path) -> None:
    assert load(tmp_path, "owner: data-platform@example.org", 'owner: "010"').owner == "010"
