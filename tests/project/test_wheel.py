"""The wheel: what it contains, and that it works without the checkout."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[2]
SOURCES = ("include", "spark_jobs", "dags")
MAPPED = {"dags": "dags", "spark_jobs": "spark_jobs", "include/stack": "stack"}
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]

LOOK = """\
import json
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
from frazil.environment import is_wheel
from frazil.spark.engine import JOBS_DIR
import frazil_spark, sys

bag = DagBag(sys.argv[1])
plugins = plugins_manager.get_plugin_info()
print(json.dumps({
    "wheel": is_wheel(),
    "dags": sorted(bag.dags),
    "errors": list(bag.import_errors.values()),
    "files": sorted({dag.fileloc for dag in bag.dags.values()}),
    "plugins": [each["name"] for each in plugins],
    "jobs": str(JOBS_DIR),
    "has_jobs": (JOBS_DIR / "stage_batch.py").is_file(),
}))
"""


def test_every_package_is_in_the_wheel() -> None:
    tools = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join(path.parent.relative_to(PROJECT / root).parts)
        for root in ("include", "spark_jobs")
        for path in (PROJECT / root).rglob("__init__.py")
    }

    assert found == {each for each in tools["packages"] if ".shipped." not in each}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, because setuptools writes beside what it builds."""
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copy(PROJECT / "pyproject.toml", copy)
    shutil.copy(PROJECT / "LICENSE", copy)
    for folder in SOURCES:
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(PROJECT / folder, copy / folder, ignore=unwanted)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", copy / "dist", copy], check=True, capture_output=True)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel, beside the packages of this one."""
    home = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    python = home / "venv" / "bin" / "python"
    packages = next((home / "venv" / "lib").glob("python*")) / "site-packages"
    (packages / "of_tests.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--no-deps", wheel], check=True, capture_output=True)
    return python


def run(site: Path, *words: str, **variables: str) -> str:
    """Run a program of the environment outside the checkout; return its standard output."""
    home = site.parents[2]
    environment = {
        "PATH": f"{site.parent}:/usr/bin:/bin",
        "HOME": str(home),
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        **variables,
    }
    done = subprocess.run(
        words, cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def settings_of(text: str) -> Mapping[str, str]:
    """Read the lines `export NAME=VALUE` of the command."""
    return dict(re.findall(r"^export (\w+)=(\S+)$", text, re.MULTILINE))


@pytest.mark.slow
def test_the_wheel_has_every_module_and_file_once_and_no_test(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    wanted = {
        path.relative_to(PROJECT / root).as_posix()
        for root, folders in (("include", "frazil*"), ("spark_jobs", "frazil_spark"))
        for folder in (PROJECT / root).glob(folders)
        for path in folder.rglob("*")
        if path.suffix in {".py", ".html", ".jinja"}
    }
    shipped = {
        f"frazil/shipped/{inside}/{path.name}"
        for folder, inside in MAPPED.items()
        for path in (PROJECT / folder).iterdir()
        if path.is_file()
    }
    example = {f"frazil/shipped/streams/{n}" for n in ("flights.yaml", "expectations/flights.json")}

    inside = [name for name in names if ".dist-info/" not in name]
    assert sorted(inside) == sorted(wanted | shipped | example)


@pytest.mark.slow
def test_a_site_with_the_wheel_has_the_dags_and_the_pages_once(site: Path, tmp_path: Path) -> None:
    settings = settings_of(run(site, "frazil", "airflow", "init", str(tmp_path)))
    (tmp_path / "frazil_streams" / "broken.yaml").write_text("stream: broken\n")
    printed = run(site, str(site), "-c", LOOK, str(tmp_path), **settings)
    found = json.loads(printed.splitlines()[-1])

    shipped = {path.name.removesuffix("_dag.py") for path in (PROJECT / "dags").glob("*.py")}
    each_stream = {"ingest", "maintain", "operate"}
    fleet = shipped - {"check_streams", *each_stream}
    (error,) = found["errors"]
    assert "broken.yaml" in error  # and the DAGs of other streams are there
    assert found["dags"] == sorted({*fleet, *(f"{kind}__flights" for kind in each_stream)})
    assert found["files"] == [str(tmp_path / "frazil_dags.py")]
    # This environment has two distributions: the wheel, and the checkout of the tests.
    assert found["plugins"].count("frazil") == 1
    assert (found["wheel"], found["has_jobs"]) == (True, True)
    assert str(PROJECT) not in found["jobs"]


def test_every_declared_range_has_the_version_that_is_tested() -> None:
    lines = (PROJECT / "requirements.txt").read_text().splitlines()
    pins = {canonicalize_name(each.name): each for each in map(Requirement, filter(is_pin, lines))}
    extras = [each for extra in DECLARED["optional-dependencies"].values() for each in extra]
    wanted = [Requirement(text) for text in [*DECLARED["dependencies"], *extras]]

    assert len(wanted) > 20
    for each in wanted:
        pinned = pins.get(canonicalize_name(each.name), each)
        if each.name != "frazil":
            (pin,) = pinned.specifier  # an extra that no test needs is pinned where it is declared
            assert pin.operator == "=="
            assert each.specifier.contains(pin.version), each


def test_the_two_packages_that_own_the_folder_pyspark_have_one_version() -> None:
    extras = DECLARED["optional-dependencies"]
    declared = map(Requirement, [*DECLARED["dependencies"], *extras["spark"]])
    found = {each.name: str(each.specifier) for each in declared if "pyspark" in each.name}

    assert found["pyspark"] == found["pyspark-client"]
    assert found["pyspark"].startswith("==")


def is_pin(line: str) -> bool:
    """Recognise a line of requirements.txt that names a package."""
    return "==" in line and not line.startswith("#")
