"""A registered schema, apart from the client that fetches it: that one imports for long."""

from dataclasses import dataclass
from typing import Literal

SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]


@dataclass(frozen=True)
class Registered:
    """One registered schema, with the schemas that it refers to by the names it uses for them."""

    id: int
    type: SchemaType
    text: str
    references: tuple[tuple[str, str], ...] = ()
