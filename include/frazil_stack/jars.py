"""The jars of Kafka, Spark and the schema registry, downloaded by the Ivy in the PySpark wheel."""

import fcntl
import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

from frazil.errors import StackError
from frazil_stack.java import Java
from frazil_stack.settings import JARS_VARIABLE, StackSettings

CONFIGURATIONS = ("spark", "kafka")

_STAMP = "fetched.json"
_TIMEOUT_SECONDS = 1800
REGISTRY_VERSION = "3.0.9"
_PROGRAM = f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar"


def has_jars(settings: StackSettings) -> bool:
    """Return whether the jar folder holds exactly the jars of the current ivy.xml."""
    try:
        stamp = json.loads((settings.jars / _STAMP).read_text())
        is_current = stamp["ivy_sha256"] == _ivy_hash(settings)
        sizes = {settings.jars / name: size for name, size in stamp["files"].items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return False
    return is_current and all(
        path.is_file() and path.stat().st_size == size for path, size in sizes.items()
    )


def ensure_jars(settings: StackSettings, java: Java, report: Callable[[str], None]) -> None:
    """Download the jars unless they are there.

    Raises:
        StackError: Ivy failed, or the folder cannot be written.
    """
    if has_jars(settings):
        return
    with hold_jars(settings):
        if has_jars(settings):
            return
        report("jars: downloading about 115 MB for Kafka and Spark, once")
        wanted = settings.templates / "ivy.xml"
        with _downloaded(settings, java, wanted, *CONFIGURATIONS) as incoming:
            for configuration in CONFIGURATIONS:
                _replace(settings.jars / configuration, incoming / configuration)
        _write_stamp(settings)


def ensure_folder(
    settings: StackSettings,
    java: Java,
    ivy_file: Path,
    configuration: str,
    report: Callable[[str], None],
) -> Path:
    """Download one configuration of an Ivy file unless it is there; return its folder.

    Raises:
        StackError: Ivy failed, or the folder cannot be written.
    """
    folder = settings.jars / configuration
    stamp = folder.with_suffix(".xml")
    with hold_jars(settings):
        if not (stamp.is_file() and stamp.read_text() == ivy_file.read_text()):
            report(f"{configuration}: downloading its jars, once")
            with _downloaded(settings, java, ivy_file, configuration) as incoming:
                _replace(folder, incoming / configuration)
            shutil.copyfile(ivy_file, stamp)
    return folder


@contextmanager
def hold_jars(settings: StackSettings) -> Iterator[None]:
    """Hold the lock of the jar folder: several homes may share it, and start at the same time.

    Raises:
        StackError: the folder cannot be written.
    """
    try:
        settings.jars.mkdir(parents=True, exist_ok=True)
        with (settings.jars / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise StackError(
            f"cannot write to the jar folder {settings.jars}: {error}",
            f"set {JARS_VARIABLE} to a folder that holds the jars of this release, or unset it",
        ) from error


def jar_files(settings: StackSettings, configuration: str) -> tuple[Path, ...]:
    """Return the jars of one configuration of ivy.xml."""
    return tuple(sorted((settings.jars / configuration).glob("*.jar")))


@contextmanager
def _downloaded(
    settings: StackSettings, java: Java, ivy_file: Path, *configurations: str
) -> Iterator[Path]:
    """Download into a folder with a subfolder for each configuration; remove it afterwards."""
    incoming = settings.jars / f"incoming-{configurations[0]}"
    shutil.rmtree(incoming, ignore_errors=True)
    _run_ivy(settings, ivy_command(settings, java, ivy_file, configurations, incoming))
    yield incoming
    shutil.rmtree(incoming, ignore_errors=True)


def _replace(folder: Path, new: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def _run_ivy(settings: StackSettings, command: list[str]) -> None:
    """Run Ivy, with its output in a log.

    Raises:
        StackError: a download failed; with the line of the log that names it.
    """
    log = settings.logs / "ivy.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        done = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        raise StackError(
            f"Ivy could not download the jars: {_find_problem(log)} (log: {log})",
            "check the network (for a proxy set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=…, for a mirror"
            " FRAZIL_IVY_SETTINGS=ivysettings.xml), then `frazil stack up`",
        )


def ivy_command(
    settings: StackSettings, java: Java, ivy_file: Path, configurations: Sequence[str], into: Path
) -> list[str]:
    """Return the command line of a download; Ivy uses neither Maven nor the user's home."""
    ivy_home = settings.home / "ivy"
    beside = ivy_file.with_name(f"ivysettings-{configurations[0]}.xml")
    own_settings = settings.ivy_settings or (beside if beside.is_file() else None)
    return [
        *(str(java.executable), f"-Duser.home={ivy_home}", "-jar", str(_ivy_jar())),
        *(["-settings", str(own_settings)] if own_settings else []),
        *("-cache", str(ivy_home), "-ivy", str(ivy_file), "-confs", *configurations),
        *("-types", "jar", "bundle", "tar.gz"),
        *("-retrieve", f"{into}/[conf]/[artifact]-[revision](-[classifier]).[ext]"),
    ]


def _ivy_jar() -> Path:
    """Return Ivy's jar in the installed PySpark, without importing PySpark."""
    spec = find_spec("pyspark")
    folders = spec.submodule_search_locations if spec else None
    found = sorted(Path(folders[0]).glob("jars/ivy-*.jar")) if folders else []
    if not found:
        raise StackError("PySpark with its jars is not installed", "run `make setup`")
    return found[-1]


def _write_stamp(settings: StackSettings) -> None:
    """Record the downloaded files; written last, so that an interrupted download starts over."""
    files = {
        str(path.relative_to(settings.jars)): path.stat().st_size
        for configuration in CONFIGURATIONS
        for path in jar_files(settings, configuration)
    }
    stamp = {"ivy_sha256": _ivy_hash(settings), "files": files}
    (settings.jars / _STAMP).write_text(json.dumps(stamp, indent=2) + "\n")


def _ivy_hash(settings: StackSettings) -> str:
    """Hash the list of artifacts, without comments; a new list causes a new download."""
    root = ET.parse(settings.templates / "ivy.xml")  # noqa: S314 - a file of this project
    wanted = sorted(sorted(item.attrib.items()) for item in root.iter("dependency"))
    return hashlib.sha256(json.dumps(wanted).encode()).hexdigest()


def _find_problem(log: Path) -> str:
    """Return the first line of the log that looks like an error."""
    words = ("not found", "UNRESOLVED", "Server access error", "FAILED", "Exception")
    lines = log.read_text(errors="replace").splitlines()
    problems = [line.strip() for line in lines if any(word in line for word in words)]
    return problems[0] if problems else "no reason given"


def registry_program(settings: StackSettings) -> Path:
    """Return the registry's jar; its libraries are in the same folder."""
    return settings.jars / f"registry-{REGISTRY_VERSION}" / _PROGRAM


def has_registry(settings: StackSettings) -> bool:
    """Return whether the registry was downloaded."""
    return registry_program(settings).is_file()


def ensure_registry(settings: StackSettings, java: Java, report: Callable[[str], None]) -> None:
    """Download the registry unless it is there.

    Raises:
        StackError: Ivy failed, or the folder cannot be written.
    """
    if has_registry(settings):
        return
    with hold_jars(settings):
        if has_registry(settings):
            return
        report("registry: downloading about 104 MB, once")
        wanted = settings.templates / "ivy-registry.xml"
        with _downloaded(settings, java, wanted, "registry") as incoming:
            (packed,) = (incoming / "registry").glob("*.tar.gz")
            with tarfile.open(packed) as archive:
                archive.extractall(incoming / "unpacked", filter="data")
            # The rename is last, so that an interrupted download starts over.
            _replace(registry_program(settings).parent, incoming / "unpacked")
