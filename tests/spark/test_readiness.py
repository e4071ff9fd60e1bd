"""The scorecard on real parts: a red line is mended by what its fix says."""

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from conftest import Lab, good_values
from faults.judges import assert_audited

pytestmark = pytest.mark.stack


def set_retention(lab: Lab, hours: int) -> None:
    entry = ConfigEntry(
        "retention.ms", str(hours * 3_600_000), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, lab.topic, incremental_configs=[entry])
    admin = lab.admin
    admin.incremental_alter_configs([resource])[resource].result(30)


def read_marks(lab: Lab) -> dict[str, str]:
    cards = lab.frazil("readiness", lab.stream, "--json").json
    assert isinstance(cards, list)
    return {line["name"]: line["mark"] for line in cards[0]["lines"]}


def test_retention_below_the_worst_outage_is_red_until_it_is_raised(lab: Lab) -> None:
    lab.create_topic()
    before = lab.frazil("readiness", lab.stream)
    set_retention(lab, 24)
    lab.produce([*good_values(20), b"no json"])
    lab.drain()

    red = lab.frazil("readiness", lab.stream)
    set_retention(lab, 24 * 7)
    marks = read_marks(lab)

    assert (before.code, "unknown" in before.out) == (1, True)
    assert (red.code, "raise retention.ms" in red.out) == (1, True)
    assert marks["retention"] == marks["rollback"] == "ok"
    assert marks["dead letters"] == marks["authentication"] == "warn"
    assert lab.frazil("readiness", lab.stream, "--outage-hours", "72").code == 0
    assert_audited(lab)
