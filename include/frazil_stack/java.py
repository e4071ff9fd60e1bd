"""Find a Java for Spark 4.1 and Kafka 4.1, and the class archive that shortens Spark's start."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from frazil.errors import StackError
from frazil_stack.settings import StackSettings

SUPPORTED_VERSIONS = (17, 21)
"""Spark 4.1 runs on 17 and 21; Kafka 4.1's broker needs 17 or newer."""

_FOLDERS = (
    "/usr/lib/jvm/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
)
_INSTALL = (
    "install Java 17 (Debian, Ubuntu: `apt install openjdk-17-jre-headless`;"
    " macOS: `brew install openjdk@17`), or set JAVA_HOME to an installed one"
)
_EMPTY = b"\0\0\0\0"


@dataclass(frozen=True)
class Java:
    """One installed Java."""

    home: Path
    version: str

    @property
    def executable(self) -> Path:
        """Return the `java` command."""
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        """Return the major version: 17 of `17.0.15`, 8 of `1.8.0_402`."""
        numbers = re.findall(r"\d+", self.version)
        return int(numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0])

    @property
    def is_supported(self) -> bool:
        """Return whether both Spark and Kafka run on it."""
        return self.major in SUPPORTED_VERSIONS


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Find Java 17 or 21: JAVA_HOME, then `java` on PATH, then the usual folders.

    Raises:
        StackError: there is none; lists the versions that were found.
    """
    unsuitable: list[str] = []
    for executable in _candidates(environment):
        java = _read_version(executable)
        if java is None:
            unsuitable.append(f"{executable} (does not run)")
        elif java.is_supported:
            return java
        else:
            unsuitable.append(f"{java.version} at {java.home}")
    found = f"found only {'; '.join(unsuitable)}" if unsuitable else "found none"
    raise StackError(f"Java 17 or 21 is needed; {found}", _INSTALL)


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield each existing `java` command once."""
    seen: set[Path] = set()
    for executable in _paths(environment):
        target = executable.resolve()
        if executable.is_file() and target not in seen:
            seen.add(target)
            yield executable


def _paths(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield paths at which a `java` command may be, the user's choice first."""
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield Path(on_path)
    for pattern in _FOLDERS:
        for folder in sorted(Path("/").glob(pattern.removeprefix("/"))):
            yield folder / "bin" / "java"


def _read_version(executable: Path) -> Java | None:
    """Run `java -version`; return None if it fails or is not a Java."""
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr)


def parse_version(text: str) -> Java | None:
    """Parse the properties that `java -XshowSettings:properties` prints."""
    properties = dict(re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", text, re.MULTILINE))
    if len(properties) != len(("java.home", "java.version")):
        return None
    return Java(Path(properties["java.home"]), properties["java.version"])


def archive_option(settings: StackSettings, java: Java, jars: Iterable[Path]) -> str:
    """Return the JVM option that uses Spark's class archive, or writes it if there is none.

    Jars that several homes share are never written to: an existing archive is used.
    """
    archive = settings.jars / f"spark-{_fingerprint(settings, java, jars)}.jsa"
    part, is_own = archive.with_suffix(".part"), settings.jars.parent == settings.home
    if is_own and not archive.exists() and _is_complete(part):
        part.chmod(0o444)  # the JVM creates it for its own user only
        part.replace(archive)
    if os.access(archive, os.R_OK):  # a named archive that is missing would switch off all sharing
        return f"-XX:SharedArchiveFile={archive}"
    if not is_own:
        return ""
    for old in (*settings.jars.glob("spark-*.jsa"), *settings.jars.glob("spark-*.part")):
        old.unlink()
    return f"-XX:ArchiveClassesAtExit={part}"


def _is_complete(part: Path) -> bool:
    """Return whether the JVM finished the archive: it writes the head of the file last."""
    if not part.exists():
        return False
    with part.open("rb") as file:
        return file.read(len(_EMPTY)) not in {b"", _EMPTY}


def _fingerprint(settings: StackSettings, java: Java, jars: Iterable[Path]) -> str:
    """Hash what an archive depends on: Java, heap size, and the jars with size and mtime."""
    spark = find_spec("pyspark")
    folders = spark.submodule_search_locations if spark is not None else None
    own = Path(folders[0], "jars").glob("*.jar") if folders else ()
    files = [(str(path), *_measure(path)) for path in (*sorted(own), *jars)]
    fits = [str(java.home), java.version, settings.spark_memory, files]
    return hashlib.sha256(json.dumps(fits).encode()).hexdigest()[:16]


def _measure(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
