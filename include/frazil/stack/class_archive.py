"""Spark's classes as one file that the JVM maps, in place of loading each from its jar.

The first Spark server of a home writes it when it ends; later ones begin with it. The JVM itself
refuses an archive of other jars or of another Java, and loads the classes as ever.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from frazil.stack.java import Java
from frazil.stack.settings import StackSettings

_EMPTY = b"\0\0\0\0"


def archive_option(settings: StackSettings, java: Java, jars: Iterable[Path]) -> str:
    """Give the JVM's option to use the archive, or to write it where nobody has.

    Jars that several homes share have no home that would write: only what is there is used.
    """
    archive = settings.jars / f"spark-{_fingerprint(settings, java, jars)}.jsa"
    part, is_own = archive.with_suffix(".part"), settings.jars.parent == settings.home
    if is_own and not archive.exists() and _is_whole(part):
        part.chmod(0o444)  # the JVM leaves it to its own user
        part.replace(archive)
    if os.access(archive, os.R_OK):  # without one that is named, the JVM shares no class at all
        return f"-XX:SharedArchiveFile={archive}"
    if not is_own:
        return ""
    for old in (*settings.jars.glob("spark-*.jsa"), *settings.jars.glob("spark-*.part")):
        old.unlink()
    return f"-XX:ArchiveClassesAtExit={part}"


def _is_whole(part: Path) -> bool:
    """Say whether a JVM came to its end with it: the head of the file is written last."""
    if not part.exists():
        return False
    with part.open("rb") as file:
        return file.read(len(_EMPTY)) not in {b"", _EMPTY}


def _fingerprint(settings: StackSettings, java: Java, jars: Iterable[Path]) -> str:
    """Name what an archive fits: Java, its heap, and the jars as they lie on this disk."""
    spark = find_spec("pyspark")
    folders = spark.submodule_search_locations if spark is not None else None
    own = Path(folders[0], "jars").glob("*.jar") if folders else ()
    files = [(str(path), *_measure(path)) for path in (*sorted(own), *jars)]
    fits = [str(java.home), java.version, settings.spark_memory, files]
    return hashlib.sha256(json.dumps(fits).encode()).hexdigest()[:16]


def _measure(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
