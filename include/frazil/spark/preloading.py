"""Imports that a process does once for all its forks, and how forks notice changed files.

A changed library needs a restart. Frazil's own modules do not: each fork compares their files with
the imported ones, and imports all of them again if one differs.
"""

import logging
import os
import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module, invalidate_caches

log = logging.getLogger(__name__)

_OWN = ("frazil", "frazil_airflow", "frazil_cli", "frazil_demo", "frazil_spark", "frazil_stack")


def preload(modules: Iterable[str]) -> None:
    """Import modules; later forks of this process drop Frazil's modules if a file has changed.

    A module that cannot be imported is logged and left to the forks: Airflow's fork server would
    hide the error, and with it that changed files go unnoticed.
    """
    failures = []
    for module in modules:
        try:
            import_module(module)
        except Exception as error:  # noqa: BLE001 - the fork that needs the module raises it again
            failures.append(f"{module} ({type(error).__name__}: {error})")
    if failures:
        log.warning("modules were not preloaded, each task imports them: %s", "; ".join(failures))
    os.register_at_fork(after_in_child=partial(_drop_changed, _stamp(_own_files())))


def _own_files() -> list[str]:
    """List the files of Frazil's imported modules."""
    own = [module for name, module in sys.modules.items() if name.partition(".")[0] in _OWN]
    return sorted(file for module in own if (file := getattr(module, "__file__", None)))


def _stamp(files: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Return modification time and size of each file; None if it cannot be read."""
    stamps: dict[str, tuple[int, int] | None] = {}
    for file in files:
        try:
            found = os.stat(file)  # noqa: PTH116 - faster, for 200 files in each task
        except OSError:
            stamps[file] = None
        else:
            stamps[file] = (found.st_mtime_ns, found.st_size)
    return stamps


def _drop_changed(imported: dict[str, tuple[int, int] | None]) -> None:
    """Drop all of Frazil's modules if one file has changed, because they refer to each other."""
    if _stamp(imported) == imported:
        return
    invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
        del sys.modules[name]
