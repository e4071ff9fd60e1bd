"""A few real batches, and what `frazil cost` says of them."""

from collections.abc import Mapping
from typing import cast

import pytest
from conftest import REPO, Lab, good_values
from faults.judges import assert_audited

pytestmark = pytest.mark.stack


def test_real_batches_have_a_measured_cost_by_day(lab: Lab) -> None:
    lab.create_topic()
    for size in (20, 200):
        lab.produce(good_values(size))
        assert lab.frazil("run", lab.stream).code == 0

    prices = str(REPO / "docs" / "prices.yaml")
    answer = lab.frazil("cost", lab.stream, "--prices", prices, "--json").json

    (report,) = cast("list[Mapping[str, list[Mapping[str, float]]]]", answer)
    days = report["days"]
    assert sum(day["batches"] for day in days) == 2
    assert sum(day["measured"] for day in days) == 2
    assert sum(day["spark_measured"] for day in days) == 2
    assert sum(day["records"] for day in days) == 220
    assert sum(day["cpu_seconds"] for day in days) > 0.1
    assert sum(day["spark_cpu_seconds"] for day in days) > 0.1
    assert sum(day["files_written"] for day in days) == days[-1]["files_live"] > 0
    assert sum(day["requests"] for day in days) > 20
    assert cast("Mapping[str, float]", days[-1]["money"])["cpu"] > 0
    assert [told["factor"] for told in report["what_if"]] == [2, 0.5]
    assert "2 batches measured" in str(cast("Mapping[str, object]", report["fit"])["why"])
    events = cast(
        "list[Mapping[str, Mapping[str, int]]]",
        lab.frazil("timeline", "--stream", lab.stream, "--json").json,
    )
    for phase in ("plan_ms", "stage_ms", "check_ms", "publish_ms"):
        assert len([e for e in events if e["facts"].get(phase, -1) >= 0]) == 2, phase
    assert_audited(lab)


def test_a_stream_that_has_not_begun_hides_no_other(lab: Lab) -> None:
    lab.create_topic()
    lab.produce(good_values(5))
    lab.frazil("run", lab.stream)
    begun, other = lab.stream, {**lab.document, "stream": "later", "source": {"topic": "later"}}
    lab.stream = "later"
    lab.write_stream(**other | {"table": {"name": "lab.later"}})

    done = lab.frazil("cost")

    assert done.code == 1
    assert f"Cost of {begun}" in done.out
    assert "MissingTable" in done.err
