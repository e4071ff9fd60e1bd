"""The program of the optional schema registry: one archive, fetched and unpacked when asked for."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from frazil.stack.jars import hold_jars, ivy_start, run_ivy
from frazil.stack.java import Java
from frazil.stack.settings import StackSettings

VERSION = "3.0.9"
_ARCHIVE = "apicurio-registry-app"
_PROGRAM = f"{_ARCHIVE}-{VERSION}-runner.jar"


def registry_program(settings: StackSettings) -> Path:
    """Locate the registry's jar; its libraries lie beside it."""
    return settings.jars / f"registry-{VERSION}" / _PROGRAM


def has_registry(settings: StackSettings) -> bool:
    """Say whether the registry was fetched."""
    return registry_program(settings).is_file()


def ensure_registry(settings: StackSettings, java: Java, say: Callable[[str], None]) -> None:
    """Fetch the registry unless it is there.

    Raises:
        StackError: Ivy failed, or the folder cannot be written.
    """
    if has_registry(settings):
        return
    with hold_jars(settings):
        if not has_registry(settings):
            say("registry: fetching about 104 MB, once")
            _fetch_registry(settings, java)


def _fetch_registry(settings: StackSettings, java: Java) -> None:
    """Let Ivy retrieve the archive; one rename at the end, so what was interrupted starts over."""
    incoming = settings.jars / "incoming-registry"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    run_ivy(settings, _ivy_command(settings, java, incoming))
    unpacked = incoming / "unpacked"
    with tarfile.open(incoming / f"{_ARCHIVE}.tar.gz") as archive:
        archive.extractall(unpacked, filter="data")
    shutil.rmtree(registry_program(settings).parent, ignore_errors=True)
    unpacked.rename(registry_program(settings).parent)
    shutil.rmtree(incoming, ignore_errors=True)


def _ivy_command(settings: StackSettings, java: Java, into: Path) -> list[str]:
    own = settings.ivy_settings or settings.templates / "ivysettings-registry.xml"
    return [
        *ivy_start(settings, java, own),
        "-ivy",
        str(settings.templates / "ivy-registry.xml"),
        "-confs",
        "registry",
        "-types",
        "tar.gz",
        "-retrieve",
        f"{into}/[artifact].[ext]",
    ]
