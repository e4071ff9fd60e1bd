"""Jars that only tests and benchmarks need, fetched by the Ivy inside the PySpark wheel."""

import os
from pathlib import Path

from frazil_stack.jars import ensure_folder
from frazil_stack.java import find_java
from frazil_stack.settings import load_settings

DEFAULT_JARS = Path(__file__).parents[2] / ".frazil" / "jars"


def ensure_jars(ivy_file: Path, configuration: str) -> Path:
    """Fetch one configuration of an Ivy file into a folder of its name in `$FRAZIL_JARS`."""
    settings = load_settings({"FRAZIL_JARS": str(DEFAULT_JARS), **os.environ})
    return ensure_folder(settings, find_java(), ivy_file, configuration, print)
