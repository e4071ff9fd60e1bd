"""The merge gives its own columns names that no column of a stream file may have."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import merge_changes
from frazil.ledger.keys import KAFKA_COLUMN
from frazil.state_tables.merge_rules import DELETED_AT
from frazil.streams.column_types import STAGING_PREFIX, validate_column_name
from frazil.streams.state_sections import MEMORY, SEQUENCE
from frazil_spark import unavailable_values

OF_TABLES = {KAFKA_COLUMN, DELETED_AT, MEMORY, SEQUENCE}
"""Columns of the tables that a merge writes, beside those of the file."""
QUOTED = "`file's`"
"""Stands for what is in Spark's quotes: a column of the file."""
UNKNOWN = "?"
ALIASES = re.compile(r"\bAS\s+(`[^`]*`|[^\s,()]+)")
CASTS = re.compile(r"CAST\((.*?) AS [^()]*\)")


def resolve(module: ModuleType, node: ast.expr) -> str | None:
    """Give the text of an expression, with the module's constants in it; None if it is no text."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.Name(name):
            found = vars(module).get(name)
            return found if isinstance(found, str) else UNKNOWN
        case ast.Call(ast.Name("quote_name")):
            return QUOTED
        case ast.JoinedStr(parts):
            return "".join(resolve(module, part) or UNKNOWN for part in parts)
        case ast.FormattedValue(value):
            return resolve(module, value)
    return None


def list_aliases(module: ModuleType) -> Iterator[str]:
    """Yield the names that a module's SQL and calls give to columns, tables and views."""
    assert module.__file__ is not None
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        match node:
            case ast.Constant() | ast.JoinedStr():
                yield from ALIASES.findall(CASTS.sub(r"\1", resolve(module, node) or ""))
            case ast.Call(
                ast.Attribute(attr="alias" | "withColumn" | "createOrReplaceTempView"), [name, *_]
            ):
                yield resolve(module, name) or UNKNOWN
            case ast.Assign([ast.Name(name)], ast.Constant(str(text))) if name.isupper():
                if re.fullmatch(r"\w+", text):
                    yield text


@pytest.mark.parametrize("module", [merge_changes, unavailable_values])
def test_a_name_of_the_merge_begins_like_no_column_of_a_file(module: ModuleType) -> None:
    found = {*list_aliases(module)} - OF_TABLES - {QUOTED, UNKNOWN}

    assert len(found) > 10
    assert [name for name in sorted(found) if not name.startswith(STAGING_PREFIX)] == []


def test_a_name_that_the_merge_computes_is_one_of_the_filled_values() -> None:
    unknown = [[*list_aliases(each)].count(UNKNOWN) for each in (merge_changes, unavailable_values)]

    assert unknown == [0, 3]  # `_frazil_value_0` and so on, and the fields of a row


@pytest.mark.parametrize("name", ["_frazil_live", "_FRAZIL_live"])
def test_no_column_of_a_file_begins_so(name: str) -> None:
    with pytest.raises(ValueError, match="for staging"):
        validate_column_name(name)
