"""Jars that only tests and benchmarks need, fetched by the Ivy inside the PySpark wheel."""

import fcntl
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from frazil_stack.java import find_java

DEFAULT_JARS = Path(__file__).parents[2] / ".frazil" / "jars"
FETCH_SECONDS = 900


def ensure_jars(ivy_file: Path, configuration: str) -> Path:
    """Fetch one configuration of an Ivy file into a folder of its name in `$FRAZIL_JARS`.

    Again only when the file has changed: its copy lies beside the folder.
    """
    jars = Path(os.environ.get("FRAZIL_JARS", DEFAULT_JARS))
    jars.mkdir(parents=True, exist_ok=True)
    with (jars / f".lock-{configuration}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetched = jars / f"{configuration}.xml"
        if not fetched.is_file() or fetched.read_text() != ivy_file.read_text():
            incoming = jars / f"incoming-{configuration}"
            shutil.rmtree(incoming, ignore_errors=True)
            command = ivy_command(ivy_file, configuration, incoming)
            subprocess.run(command, check=True, timeout=FETCH_SECONDS, stdout=subprocess.DEVNULL)
            shutil.rmtree(jars / configuration, ignore_errors=True)
            (incoming / configuration).rename(jars / configuration)
            shutil.rmtree(incoming)
            shutil.copyfile(ivy_file, fetched)
    return jars / configuration


def ivy_command(ivy_file: Path, configuration: str, into: Path) -> list[str]:
    """Build the command line, like that of the stack's own jars."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    ivy = max(Path(spec.submodule_search_locations[0]).glob("jars/ivy-*.jar"))
    settings = os.environ.get("FRAZIL_IVY_SETTINGS")
    return [
        str(find_java().executable),
        f"-Duser.home={into / 'ivy'}",
        "-jar",
        str(ivy),
        *(["-settings", settings] if settings else []),
        *["-ivy", str(ivy_file), "-cache", str(into / "ivy"), "-confs", configuration],
        *["-types", "jar", "bundle", "-retrieve"],
        f"{into}/[conf]/[artifact]-[revision](-[classifier]).[ext]",
    ]
