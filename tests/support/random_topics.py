"""Random records of each format for a topic, and what an oracle says becomes of each."""

import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from support import avro_oracle, json_oracle
from support.avro_fuzz import AvroFuzz
from support.column_fuzz import break_header
from support.json_fuzz import ALL_COLUMNS, COLUMNS, make_records
from support.json_oracle import BAD
from support.proto_fuzz import ProtoFuzz
from support.proto_oracle import Oracle

Columns = Mapping[str, object]
Told = list[tuple[bytes | None, object]]
"""Values, and what becomes of each: a row, BAD or UNTOLD."""
Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Reading:
    """A decoder, the columns of its stream, and what it makes of each value."""

    smallest_batch: int
    columns: Columns
    told: Sequence[object]


@dataclass(frozen=True)
class RandomTopic:
    """The values of a topic, and who reads them; for a registry with a schema."""

    values: Sequence[bytes | None]
    readings: Mapping[str, Reading]


def make_json(seed: int, count: int) -> RandomTopic:
    """Write JSON records, some without a value; workers read the columns that they can."""
    rnd = random.Random(f"{seed} json")
    values = [
        rnd.choice((None, b"")) if rnd.random() < 0.01 else record
        for record in make_records(seed, count)
    ]

    def read(smallest_batch: int, columns: Columns) -> Reading:
        told = [json_oracle.judge(value, columns) if value else BAD for value in values]
        return Reading(smallest_batch, columns, told)

    readings = {"Spark": read(10**9, ALL_COLUMNS), "workers": read(0, COLUMNS)}
    return RandomTopic(values, readings)


def make_avro(fuzz: AvroFuzz, header: bytes, count: int) -> Told:
    """Write Avro values behind a registry's header."""
    return _make_values(
        fuzz, header, b"", count, lambda p: avro_oracle.judge(p, fuzz.schema, fuzz.columns)
    )


def make_protobuf(fuzz: ProtoFuzz, header: bytes, count: int) -> Told:
    """Write Protobuf values behind a registry's header and the indexes of the first message."""
    oracle = Oracle(fuzz.message, fuzz.is_open)
    return _make_values(fuzz, header, b"\x00", count, lambda p: oracle.judge(p, fuzz.columns))


def _make_values(
    fuzz: AvroFuzz | ProtoFuzz,
    header: bytes,
    indexes: bytes,
    count: int,
    judge: Callable[[bytes], object],
) -> Told:
    """Make values of one schema, and what becomes of each; the header of some is broken."""
    rnd, made = random.Random(fuzz.seed), Told()
    for _ in range(count):
        payload = indexes + fuzz.make_payload()
        if rnd.random() < 0.05:
            made.append((break_header(rnd, header, payload), BAD))
        else:
            made.append((header + payload, judge(payload[len(indexes) :])))
    return made


def make_registered(
    form: str, seed: int, count: int, register: Callable[[str, str], int]
) -> RandomTopic:
    """Register a random schema and write its records; both decoders read the same columns."""
    if form == "Avro":
        avro = AvroFuzz(seed)
        known = register(json.dumps(avro.schema), "AVRO")
        columns, made = avro.columns, make_avro(avro, _frame(known), count)
    else:
        protobuf = ProtoFuzz(seed)
        known = register(protobuf.text, "PROTOBUF")
        columns, made = protobuf.columns, make_protobuf(protobuf, _frame(known), count)
    told = [each for _, each in made]
    readings = {
        name: Reading(smallest, columns, told)
        for name, smallest in (("Spark", 10**9), ("workers", 0))
    }
    return RandomTopic([value for value, _ in made], readings)


def _frame(schema_id: int) -> bytes:
    return struct.pack(">bI", 0, schema_id)


@dataclass(frozen=True)
class Envelope:
    """What travels with a record beside its value."""

    key: bytes | None
    headers: list[Header]
    timestamp_ms: int


def make_envelopes(seed: int, count: int) -> list[Envelope]:
    """Choose keys, headers and timestamps of any form."""
    rnd = random.Random(f"{seed} envelopes")

    def choose_bytes() -> bytes | None:
        return rnd.choice((None, b"", b"\xff\x00", b"k", rnd.randbytes(rnd.randrange(1, 40))))

    def choose_headers() -> list[Header]:
        names = rnd.choices(("", "h", "ä", "trace-id"), k=rnd.choice((0, 0, 1, 3)))
        return [(name, choose_bytes()) for name in names]

    ends = (1, 1_764_000_000_123, 253_402_300_799_999)
    return [
        Envelope(choose_bytes(), choose_headers(), rnd.choice((*ends, rnd.randrange(1, ends[2]))))
        for _ in range(count)
    ]
