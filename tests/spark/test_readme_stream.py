"""The stream file of README.md makes a stream, as it stands there."""

import json
import re

import pytest
import yaml
from conftest import REPO, Lab

pytestmark = [pytest.mark.spark, pytest.mark.stack]


def test_the_stream_file_of_the_readme_loads_records(lab: Lab) -> None:
    readme = (REPO / "README.md").read_text()
    found = re.search(r"```yaml\n(stream: orders\n.*?)```", readme, re.DOTALL)
    assert found
    content = yaml.safe_load(found[1])
    lab.document = content
    table = {**content["table"], "name": lab.table}
    lab.write_stream(stream=lab.stream, source={"topic": lab.topic}, table=table)
    lab.create_topic()
    order = {"id": 4711, "placed_at": "2026-03-01T12:30:00Z", "amount": "19.99"}
    lab.produce([json.dumps(order).encode()] * 3)

    checked = lab.frazil("streams", "--json")
    planned = lab.frazil("plan", lab.stream)
    ran = lab.frazil("run", lab.stream)

    assert (checked.code, planned.code, ran.code) == (0, 0, 0), ran.err
    assert (lab.rows, "0 dead letters" in ran.out) == (3, True), ran.out
