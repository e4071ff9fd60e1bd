"""Only `iceberg/commits.py` uses PyIceberg's private parts or replaces a method of its classes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
COMMITS = PROJECT / "include/frazil/iceberg/commits.py"
FILES = [path for name in ("include", "spark_jobs") for path in (PROJECT / name).rglob("*.py")]


def find_faults(source: str) -> Iterator[str]:
    """Yield imports of private names of PyIceberg, and assignments to parts of it."""
    tree = ast.parse(source)
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg"):
            imported |= {each.asname or each.name for each in node.names}
            full = (f"{node.module}.{each.name}" for each in node.names)
            yield from (name for name in full if "._" in name)
    for node in ast.walk(tree):
        target = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(target, ast.Name) and target.id in imported:
            is_patch = isinstance(node.ctx, ast.Store | ast.Del)  # type: ignore[attr-defined]
            if is_patch or (node.attr.startswith("_") and node.attr[1] != "_"):  # type: ignore[attr-defined]
                yield ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and imported:
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "source",
    [
        "from pyiceberg.table.update.snapshot import _FastAppendFiles",
        "from pyiceberg.utils import truncate\ntruncate.truncate_upper_bound = None",
        "from pyiceberg.utils import truncate\nsetattr(truncate, 'f', None)",
        "from pyiceberg.table import Table\nTable._do_commit",
    ],
)
def test_the_scan_finds_private_parts_and_replaced_ones(source: str) -> None:
    assert list(find_faults(source))


def test_only_the_module_of_commits_uses_private_parts_of_pyiceberg() -> None:
    faults = {
        str(path.relative_to(PROJECT)): found
        for path in FILES
        if path != COMMITS and (found := list(find_faults(path.read_text())))
    }

    assert faults == {}
