"""docs/migrate.md does what it says: its commands, in its order, on real parts."""

import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import REPO, Lab, good_values
from pyiceberg.catalog import load_catalog

from faults.legacy import Legacy, filled

pytestmark = pytest.mark.stack
PAGE = Path(REPO, "docs/migrate.md")


def commands_of(section: str) -> list[str]:
    """List the commands of one section, in order, without comments."""
    text = PAGE.read_text().split(f"\n## {section}")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def run_all(lab: Lab, section: str) -> list[str]:
    """Run a section's commands with the lab's names in place of the page's; give their output."""
    outputs = []
    for command in commands_of(section):
        text = re.sub(r"\bflights\b", lab.stream, command)
        text = text.replace("comparison.html", str(lab.folder / "comparison.html"))
        run = lab.frazil(*shlex.split(text)[1:])
        assert run.code == 0, f"{command}: {run.out}{run.err}"
        outputs.append(run.out)
    return outputs


def test_every_section_with_commands_is_run_here() -> None:
    sections = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)

    found = [name for name in sections if commands_of(name)]

    assert [name.partition(":")[0] for name in found] == ["In parallel", "In place"]


def test_a_parallel_run_is_compared_and_changed_over(legacy: Legacy) -> None:
    lab = legacy.lab
    legacy.foreign = legacy.foreign.of(name=f"legacy.{lab.stream}")
    filled(legacy)
    before = legacy.table.metadata_location

    run_all(lab, "In parallel")

    page = (lab.folder / "comparison.html").read_text()
    assert '<p class="verdict equal">equal</p>' in page
    assert legacy.table.metadata_location == before, "the other writer's table is as it was"


@pytest.mark.core
def test_a_table_is_taken_over_and_given_back(legacy: Legacy) -> None:
    """Undo: the other writer continues at the offsets that the status shows."""
    lab = legacy.lab
    filled(legacy)

    outputs = run_all(lab, "In place")

    assert '"next_offset": 30' in outputs[-1]
    lab.produce(good_values(10, start=1000))
    given_back = [r for r in legacy.read_topic() if int(str(r["offset"])) >= 30]
    rows = [legacy.foreign.lay_out(row) for row in given_back]
    legacy.append(rows)
    ids = sorted(row["id"] for row in legacy.table.scan().to_arrow().to_pylist())
    assert ids == sorted(int(str(row["id"])) for row in legacy.read_topic())


def test_a_copy_of_a_table_that_was_given_back_can_be_adopted_again(legacy: Legacy) -> None:
    lab = legacy.lab
    filled(legacy)
    run_all(lab, "In place")
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    copy = catalog.create_table(f"{lab.table}_copy", legacy.table.schema())
    copy.append(legacy.table.scan().to_arrow())
    again = f"{lab.stream}_again"
    (lab.folder / f"{again}.yaml").write_text(
        (lab.folder / f"{lab.stream}.yaml")
        .read_text()
        .replace(f"stream: {lab.stream}", f"stream: {again}")
        .replace(lab.table, f"{lab.table}_copy")
    )

    run = lab.frazil("adopt", again, "--by", "jane", "--reason", "again", "--no-dry-run", "--json")

    assert run.code == 0, run.out + run.err
    assert f"reading continues at {lab.stream}:0:30, {lab.stream}:1:30" in run.out


def test_a_comparison_names_records_that_one_side_keeps_as_dead_letters(legacy: Legacy) -> None:
    """The other writer took what our stream refuses: it is extra there, and known here."""
    lab = legacy.lab
    lab.produce([b'{"id": "no number"}'], partitions=1)
    legacy.foreign = legacy.foreign.of(name=f"legacy.{lab.stream}")
    legacy.create()
    rows = legacy.read_topic()
    legacy.write(
        [row | {"id": 0, "amount": 0.0} if row["id"] == "no number" else row for row in rows]
    )
    lab.drain()

    run = lab.frazil("compare", lab.stream, legacy.foreign.name, "--rows-only", "--json")

    first = json.loads(run.out)["partitions"][0]
    assert run.code == 1
    assert (first["extra"], first["extra_dead_letters"]) == (1, 1)
    assert first["samples"]["extra"] == [30]
