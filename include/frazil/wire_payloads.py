"""The parts of a stream's records that a registry's schemas decode."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from frazil.columns import Column, parse_column
from frazil.contracts import Part
from frazil.payloads import BY_REGISTRY, VALUE_COLUMN, Key, Value
from frazil.schema_policy import Kind
from frazil.streams import Stream

NOTHING: Mapping[Part, frozenset[Kind]] = MappingProxyType({})


@dataclass(frozen=True)
class Payload:
    """One part of a stream's records that a registry's schemas decode."""

    stream: Stream
    part: Part
    waits: bool = True
    """Whether a schema that cannot be used may hold a batch up; letters are set aside already."""
    quarantined: frozenset[Kind] = frozenset()
    """Changes to the columns that make letters of the records of a schema that asks for them."""

    @property
    def options(self) -> Value | Key:
        """Give the part's section of the stream file."""
        return self.stream.value if self.part == "value" else self.stream.key

    @property
    def subject(self) -> str:
        """Name the subject: the stream file's, or the topic's own."""
        return self.options.subject or f"{self.stream.source.names[0]}-{self.part}"

    @property
    def is_framed(self) -> bool:
        """Say whether an id stands in front of each payload."""
        return self.options.convert == "by_schema_id"

    @property
    def is_flat(self) -> bool:
        """Say whether the fields of a payload are columns of their own."""
        return self.part == "value" and self.stream.value.is_flat

    @property
    def whole(self) -> str:
        """Name the column of a payload that is kept in one."""
        return VALUE_COLUMN if self.part == "value" else self.stream.key.column

    @property
    def columns(self) -> tuple[Column, ...]:
        """List the columns that the payload fills."""
        pairs = self.options.typed_columns
        return tuple(parse_column(name, text) for name, text in pairs.items())


def list_payloads(
    stream: Stream, quarantined: Mapping[Part, frozenset[Kind]] = NOTHING
) -> tuple[Payload, ...]:
    """List the parts of a stream's records that need a registry."""
    parts: tuple[Part, ...] = ("value", "key")
    payloads = (
        Payload(stream, part, quarantined=quarantined.get(part, frozenset())) for part in parts
    )
    return tuple(p for p in payloads if p.options.convert in BY_REGISTRY)
