"""The stream file of README.md makes a stream, as it stands there."""

import re
import subprocess
import sys

import pytest
import yaml
from conftest import REPO, Lab

pytestmark = [pytest.mark.spark, pytest.mark.stack]


@pytest.mark.core
def test_the_stream_file_of_the_readme_loads_records(lab: Lab) -> None:
    readme = (REPO / "README.md").read_text()
    found = re.search(r"```yaml\n(stream: orders\n.*?)```", readme, re.DOTALL)
    assert found
    content = yaml.safe_load(found[1])
    lab.document = content
    table = {**content["table"], "name": lab.table}
    lab.write_stream(stream=lab.stream, source={"topic": lab.topic}, table=table)
    unknown = lab.frazil("plan", lab.stream)
    assert "python -m frazil_demo.send TOPIC" in unknown.err
    (order,) = re.findall(
        r"^echo '(.*)' \| python -m frazil_demo\.send orders$", readme, re.MULTILINE
    )
    send = [sys.executable, "-m", "frazil_demo.send", lab.topic]
    sent = subprocess.run(
        send,
        input=f"{order}\n" * 3,
        env=lab.environment(),
        text=True,
        check=True,
        stdout=subprocess.PIPE,
    )
    assert sent.stdout == f"{lab.topic}: 3 records sent\n"

    checked = lab.frazil("streams", "--json")
    planned = lab.frazil("plan", lab.stream)
    ran = lab.frazil("run", lab.stream)

    assert (checked.code, planned.code, ran.code) == (0, 0, 0), ran.err
    assert (lab.rows, "0 dead letters" in ran.out) == (3, True), ran.out
    (where,) = re.findall(r"^frazil (where orders [^#]*?) *#", readme, re.MULTILINE)
    found_at = lab.frazil(*where.replace("orders", lab.stream).split())
    assert found_at.code == 0, found_at.out + found_at.err
