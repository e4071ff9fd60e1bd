"""Every drill passes on real parts, says what it saw, and leaves nothing behind."""

import importlib.util
import json
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from conftest import REPO, Lab, Stack
from pyiceberg.catalog import load_catalog
from support.forked import Run
from support.lake import make_stream
from support.postgres import MISSING, PROGRAMS

from frazil.observability.readiness import check_readiness
from frazil.workspace import open_workspace
from frazil_stack.drills.catalogue import DRILLS, run_drill
from frazil_stack.drills.scratch_stream import Scratch

pytestmark = pytest.mark.stack


AT_ONCE = 2
"""A drill is a dozen processes, one after the other: alone it leaves the other cores idle."""


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, stack: Stack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Lab, Mapping[str, Future[Run]]]]:
    """Run the drills that this session asks for beside each other: none may disturb another."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = [str(each.callspec.params["name"]) for each in functions if "runs" in each.fixturenames]
    lab = Lab(stack, tmp_path_factory.mktemp("drills"), f"s{secrets.token_hex(4)}")
    document = make_stream(lab.stream, table={"name": lab.table})
    lab.write_stream(**document.model_dump(mode="json", by_alias=True, exclude_unset=True))
    lab.frazil("drill")  # whose imports all others share
    with ThreadPoolExecutor(AT_ONCE) as pool:

        def start(name: str) -> Future[Run]:
            words = ("drill", name, "--like", lab.stream, "--json")
            return pool.submit(lab.frazil, *words, timeout=400)

        yield lab, {name: start(name) for name in names}
        pool.shutdown(cancel_futures=True)  # where a failure ends the session


@pytest.mark.storm(2)
@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_passes_and_leaves_nothing_behind(
    runs: tuple[Lab, Mapping[str, Future[Run]]], name: str
) -> None:
    lab, started = runs

    if name == "merge_killed" and not PROGRAMS:
        pytest.skip(MISSING)
    done = started[name].result()

    assert done.code == 0, done.out + done.err
    report = done.json
    assert isinstance(report, dict)
    assert (report["passed"], report["finding"]) == (True, None)
    assert report["recovery_seconds"] > 0
    assert any("frazil audit" in line for line in report["seen"])
    scratch = next(word for word in report["seen"][0].split() if word.startswith("frazil_drill_"))
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    assert not [table for _, table in catalog.list_tables("frazil_drill") if scratch in table]
    catalog.close()
    admin = lab.admin
    assert scratch not in admin.list_topics(timeout=30).topics


def test_a_drill_that_finds_a_loss_fails_and_says_what(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    monkeypatch.setenv("FRAZIL_STREAMS", str(lab.folder))
    monkeypatch.setattr(Scratch, "count_rows", lambda _: 99)

    report = run_drill(open_workspace(lab.stream, "drill-1"), "replay")

    assert (report.passed, report.finding) == (False, "rows: 99, expected 100")
    assert "FAILED: rows: 99, expected 100" in report.text
    lab.create_topic()
    lines = check_readiness(open_workspace(lab.stream, "readiness-1")).lines
    found = next(line for line in lines if line.name == "last drill")
    assert (found.mark, "FAILED" in found.evidence) == ("fail", True)


@pytest.mark.parametrize("name", ["mirror_promoted", "broker_restart"])
def test_a_drill_that_needs_a_broker_where_none_can_run_is_skipped_and_says_why(
    lab: Lab, name: str
) -> None:
    elsewhere = json.dumps({"conn_type": "spark_connect", "host": "sc://spark.example.org"})

    far = lab.frazil(
        "drill", name, "--like", lab.stream, AIRFLOW_CONN_SPARK_CONNECT_DEFAULT=elsewhere
    )
    bare = lab.frazil("drill", name, "--like", lab.stream, "--json", FRAZIL_JARS="/nowhere")

    assert (far.code, "skipped: " in far.out, "spark.example.org" in far.out) == (0, True, True)
    assert bare.code == 0
    assert isinstance(bare.json, dict)
    assert (bare.json["passed"], "/nowhere" in bare.json["skipped"]) == (False, True)


def test_an_unknown_drill_is_refused_with_those_that_there_are(lab: Lab) -> None:
    done = lab.frazil("drill", "meteor", "--like", lab.stream)

    assert (done.code, "killed_writer" in done.err) == (1, True)


def test_the_form_offers_every_drill() -> None:
    spec = importlib.util.spec_from_file_location("drill_dag", REPO / "dags" / "drill_dag.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert tuple(DRILLS) == module.DRILLS
