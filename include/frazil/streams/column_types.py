"""The column types of stream files, such as `long!`, `decimal(9,2)`, `list<struct<id: long!>>`.

Type names are Iceberg's. This module imports neither PyIceberg nor PySpark, so that DAG files can
validate streams at parse time.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from frazil.ledger.keys import KAFKA_COLUMN

PRIMITIVES: Mapping[str, str] = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
    "string": "STRING",
    "uuid": "STRING",
    "binary": "BINARY",
}
"""Iceberg primitive → Spark type; decimal and fixed, which have parameters, are not included."""

MAX_LONG = 2**63 - 1
MAX_FIXED_LENGTH = 2**31 - 1
"""Arrow and Java count the bytes of a value in 32 bits."""
MAX_DECIMAL_PRECISION = 38
MAX_LEVELS = 50
"""Lists, maps and structs inside each other: PyIceberg cannot read the metadata of a table with 70
levels, which it can write."""
_QUOTED = r"'[^']+'|\"(?:[^\"\\]|\\.)+\""
_TOKEN = re.compile(rf"\s*([A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:!]|{_QUOTED})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

METADATA_COLUMNS = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)
"""The columns that Iceberg adds when it reads a table (`MetadataColumns` of Iceberg 1.12).

`file_path`, `pos` and `row` are not among them: those are columns of delete files only.
"""

_IN_STRUCT = (
    "; names have letters, digits and _ only, and start with no digit: for another field write, "
    'for example, `struct<order_id: long from "order-id">`'
)
STAGING_PREFIX = "_frazil_"
"""Prefix of the columns that a batch has only while Spark decodes it."""


class FieldError(ValueError):
    """An error of a validator over several fields; `path` is the wrong field below the section."""

    def __init__(self, path: tuple[str | int, ...], reason: str) -> None:
        """Store the path, by which the loader finds the line."""
        super().__init__(reason)
        self.path = path


@dataclass(frozen=True)
class Primitive:
    """A primitive type of Iceberg v2, with the parameters of decimal and fixed."""

    name: str
    parameters: tuple[int, ...] = ()


@dataclass(frozen=True)
class ListType:
    """A list; with `required` its elements must not be null."""

    element: "ColumnType"
    required: bool = False


@dataclass(frozen=True)
class MapType:
    """A map; with `required` its values must not be null."""

    key: "ColumnType"
    value: "ColumnType"
    required: bool = False


@dataclass(frozen=True)
class StructType:
    """A struct of named fields."""

    fields: tuple["Column", ...]


ColumnType = Primitive | ListType | MapType | StructType


@dataclass(frozen=True)
class Column:
    """A named, typed column; `required` is written as an exclamation mark.

    `source`: the field of the record that the column reads, if its name is another one. It is no
    part of the table.
    """

    name: str
    type: ColumnType
    required: bool = False
    source: str = dataclass_field(default="", compare=False)

    @property
    def field(self) -> str:
        """Return the name of the field that the column reads."""
        return self.source or self.name


class _Parser:
    """A recursive-descent parser of one type."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.level = 0
        self.tokens: list[str] = []
        self.ends: list[int] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                message = f"unexpected {text[position:].strip()[0]!r} in {text!r}"
                raise ValueError(message + _IN_STRUCT * ("struct" in text))
            self.tokens.append(match[1])
            position = match.end()
            self.ends.append(position)

    def take(self, expected: str | None = None) -> str:
        if not self.tokens:
            message = f"{self.text!r} ends too early" + (
                f": {expected!r} missing" if expected else ""
            )
            raise ValueError(message)
        token = self.tokens.pop(0)
        if expected is not None and token != expected:
            message = f"{expected!r} expected, {token!r} found in {self.text!r}"
            raise ValueError(message)
        return token

    def accept(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def take_number(self) -> int:
        token = self.take()
        if not token.isdigit():
            message = f"a number expected, {token!r} found in {self.text!r}"
            raise ValueError(message)
        return int(token)

    def parse_type(self) -> ColumnType:
        self.level += 1
        if self.level > MAX_LEVELS:
            message = f"a type has at most {MAX_LEVELS} levels of lists, maps and structs"
            raise ValueError(message)
        found = self.parse_level()
        self.level -= 1
        return found

    def parse_level(self) -> ColumnType:
        word = self.take()
        if word == "list":
            self.take("<")
            element, required = self.parse_type(), self.accept("!")
            self.take(">")
            return ListType(element, required)
        if word == "map":
            return self.parse_map()
        if word == "struct":
            return self.parse_struct()
        return self.parse_primitive(word)

    def parse_map(self) -> MapType:
        self.take("<")
        key = self.parse_type()
        if not isinstance(key, Primitive) or key.name != "string":
            message = f"map keys must be string, not {format_type(key)}"
            raise ValueError(message)
        self.take(",")
        value, required = self.parse_type(), self.accept("!")
        self.take(">")
        return MapType(key, value, required)

    def parse_struct(self) -> StructType:
        self.take("<")
        fields: list[Column] = []
        while True:
            name = self.take()
            if not _NAME.match(name):
                message = f"a field name expected, {name!r} found in {self.text!r}"
                message += _IN_STRUCT * (name[0].isdigit() or name[0] in "\"'")
                raise ValueError(message)
            self.take(":")
            fields.append(self.parse_column(name))
            if not self.accept(","):
                break
        self.take(">")
        validate_distinct_fields(tuple(fields))
        return StructType(tuple(fields))

    def parse_column(self, name: str) -> Column:
        """Parse `TYPE`, `TYPE!` or either with `from "FIELD"` behind it."""
        column_type, required = self.parse_type(), self.accept("!")
        return Column(name, column_type, required, self.parse_source())

    def parse_source(self) -> str:
        if not self.accept("from"):
            return ""
        token = self.take()
        if token[0] == "'":
            return token[1:-1]
        try:
            found = json.loads(token) if token[0] == '"' else token
        except ValueError:
            found = ""
        if not found or not (token[0] == '"' or _NAME.match(token)):
            message = f"the name of a field expected after from, {token} found in {self.text!r}"
            raise ValueError(message)
        return str(found)

    def parse_primitive(self, word: str) -> Primitive:
        if word == "decimal":
            self.take("(")
            precision = self.take_number()
            scale = self.take_number() if self.accept(",") else 0
            self.take(")")
            if not (1 <= precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision):
                message = f"decimal({precision},{scale}): precision 1 to 38, scale 0 to precision"
                raise ValueError(message)
            return Primitive("decimal", (precision, scale))
        if word == "fixed":
            self.take("(")
            length = self.take_number()
            self.take(")")
            if not 0 < length <= MAX_FIXED_LENGTH:
                message = f"fixed({length}): the length in bytes must be 1 to {MAX_FIXED_LENGTH}"
                raise ValueError(message)
            return Primitive("fixed", (length,))
        if word == "time":
            message = (
                "type 'time': Spark cannot write it to Iceberg tables; use string, or long for "
                "microseconds of the day"
            )
            raise ValueError(message)
        if word not in PRIMITIVES:
            known = ", ".join(
                [*PRIMITIVES, "decimal(p,s)", "fixed(n)", "list<…>", "map<…>", "struct<…>"]
            )
            message = f"unknown type {word!r}; known: {known}"
            raise ValueError(message)
        return Primitive(word)


def parse_column(name: str, text: str) -> Column:
    """Parse one entry of `columns:`.

    Raises:
        ValueError: the name or the type is not valid; the text lists what is.
    """
    validate_column_name(name)
    parser = _Parser(text)
    column = parser.parse_column(name)
    if parser.tokens:
        message = f"unexpected {parser.tokens[0]!r} after the type in {text!r}"
        raise ValueError(message)
    return column


def require_column(text: str) -> str:
    """Return the text of an entry of `columns:`, which can be parsed, as that of a required column.

    All else stays as it is written: the stream's hash has the text.
    """
    parser = _Parser(text)
    parser.parse_type()
    end = parser.ends[len(parser.ends) - len(parser.tokens) - 1]
    return text if parser.accept("!") else f"{text[:end]}!{text[end:]}"


def validate_column_name(name: str) -> None:
    """Refuse names that a column of a table cannot have, in any case: Spark ignores it.

    Raises:
        ValueError: the name is used by Iceberg or Frazil, or has other characters.
    """
    lowered = name.lower()
    if lowered == KAFKA_COLUMN:
        message = f"{name}: {KAFKA_COLUMN} is added to every table"
    elif lowered in METADATA_COLUMNS:
        message = (
            f"column name {name!r} belongs to Iceberg, which adds {lowered} to every table that it "
            "reads: with it neither compaction nor a replay would work"
        )
    elif lowered.startswith(STAGING_PREFIX):
        message = f"column name {name!r}: names that start with {STAGING_PREFIX} are for staging"
    else:
        validate_field_name(name)
        return
    message = f"{message}; {_suggest_source(name)}"
    raise ValueError(message)


def validate_field_name(name: str) -> None:
    """Refuse names that no column, nor a field of a struct, can have.

    Raises:
        ValueError: the name has other characters than letters, digits and _.
    """
    if _NAME.match(name):
        return
    message = (
        f"column name {name!r}: use letters, digits and _, and start with no digit; "
        f"{_suggest_source(name)}"
    )
    parent, _, child = name.partition(".")
    if _NAME.match(parent) and _NAME.match(child):
        message += f"; for field {child} inside {parent} write `{parent}: struct<{child}: …>`"
    raise ValueError(message)


def _suggest_source(name: str) -> str:
    """Suggest a column with another name for a field."""
    if not name:
        return "a field without a name cannot be read"
    plain = re.sub("[^A-Za-z0-9]+", "_", name).strip("_") or "field"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    quoted = json.dumps(name, ensure_ascii=False)
    return f"to read such a field, write `{plain}: {{type: …, from: {quoted}}}`"


def validate_distinct_names(columns: tuple[Column, ...]) -> None:
    """Refuse names that differ only in case, which Spark confuses."""
    seen: dict[str, str] = {}
    for column in columns:
        lowered = column.name.lower()
        if lowered in seen:
            message = f"columns {seen[lowered]!r} and {column.name!r} differ only in case"
            raise FieldError((column.name,), message)
        seen[lowered] = column.name


def validate_distinct_fields(columns: tuple[Column, ...]) -> None:
    """Refuse columns with names that differ only in case, and two that read the same field."""
    validate_distinct_names(columns)
    seen: dict[str, str] = {}
    for column in columns:
        if column.field in seen:
            message = f"columns {seen[column.field]!r} and {column.name!r} read the same field"
            raise FieldError((column.name,), message)
        seen[column.field] = column.name


def format_type(column_type: ColumnType) -> str:
    """Return a type as text, as in a stream file."""
    match column_type:
        case Primitive(name, parameters):
            return name + (f"({','.join(map(str, parameters))})" if parameters else "")
        case ListType(element, required):
            return f"list<{format_type(element)}{'!' if required else ''}>"
        case MapType(key, value, required):
            return f"map<{format_type(key)},{format_type(value)}{'!' if required else ''}>"
        case StructType(fields):
            inner = ",".join(f"{f.name}:{format_type(f.type)}{'!' * f.required}" for f in fields)
            return f"struct<{inner}>"


def quote_name(name: str) -> str:
    """Return a name in Spark's quotes."""
    return f"`{name.replace('`', '``')}`"


def write_text(text: str) -> str:
    """Write a text as a literal that means the same under all settings of Spark's parser.

    Texts with backslashes, quotes, `${…}` or control characters, which depend on settings, are
    written as UTF-8 in hexadecimal.
    """
    plain = text.isprintable() and not set(text) & set("'\\$")
    return f"'{text}'" if plain else f"CAST(X'{text.encode().hex()}' AS STRING)"


def to_spark_ddl(column_type: ColumnType) -> str:
    """Return the Spark type as DDL."""
    match column_type:
        case Primitive("decimal", (precision, scale)):
            return f"DECIMAL({precision},{scale})"
        case Primitive("fixed", _):
            return "BINARY"
        case Primitive(name, _):
            return PRIMITIVES[name]
        case ListType(element, _):
            return f"ARRAY<{to_spark_ddl(element)}>"
        case MapType(key, value, _):
            return f"MAP<{to_spark_ddl(key)},{to_spark_ddl(value)}>"
        case StructType(fields):
            return f"STRUCT<{','.join(f'`{f.name}`:{to_spark_ddl(f.type)}' for f in fields)}>"


def is_time(column_type: ColumnType) -> bool:
    """Return whether a type is a date or a timestamp."""
    return isinstance(column_type, Primitive) and column_type.name in {
        "date",
        "timestamp",
        "timestamptz",
    }
