"""JSON is read by RFC 8259, strictly: each rule of docs/formats.md, and generated documents.

Python's own reader, asked to be strict, is the judge of generated documents: it knows nothing of
Spark's or PyArrow's. Both ways of a batch are taken: Spark alone, and Python workers first.
"""

import json
import random
import secrets
import sys
from collections.abc import Iterator, Mapping

import pytest
from conftest import Lab
from faults.judges import assert_audited
from pyiceberg.catalog import load_catalog

from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.stack]

COLUMNS = {"id": "long!", "text": "string", "real": "double"}
GOOD = "good"
RULES: Mapping[bytes, str] = {
    b'{"id":1}': GOOD,
    b' \t\r\n{"id" : 1 } \n': GOOD,
    b'{"id":1,"text":"\\u00e4\\n\\"\\/\\b\\f\\r\\t\\\\"}': GOOD,
    b'{"id":1,"text":"\\ud83d\\ude00"}': GOOD,
    b'{"id":1,"text":"\\\\ud83d\\ude00"}': "invalid_utf8",
    b'{"id":1,"text":"\\\\\\ud83d\\ude00"}': GOOD,
    b'{"\\u0069d":1}': GOOD,
    b'{"id":1,"more":{"a":[1,{"b":null}]}}': GOOD,
    b'{"id":1,"real":-0.5E-3}': GOOD,
    b'{"id":01}': "malformed_json",
    b'{"id":+1}': "malformed_json",
    b'{"id":1.}': "malformed_json",
    b'{"id":.5}': "malformed_json",
    b'{"id":0x10}': "malformed_json",
    b'{"id":1,"real":NaN}': "malformed_json",
    b'{"id":1,"real":Infinity}': "malformed_json",
    b'{"id":1,"more":NaN}': "malformed_json",
    b'{"id":1,"text":"a\tb"}': "malformed_json",
    b'{"id":1,"text":"\\q"}': "malformed_json",
    b'{"id":1,"text":"\\u12"}': "malformed_json",
    b"{'id':1}": "malformed_json",
    b"{id:1}": "malformed_json",
    b'{"id":1,}': "malformed_json",
    b'{"id" 1}': "malformed_json",
    b'{"id":1}{"id":2}': "malformed_json",
    b'{"id":1} x': "malformed_json",
    b'{"id":1},null]}': "malformed_json",
    b'{"id":1},null],"x":[1': "malformed_json",
    b'{"id":1}, null\n],"x":[1': "malformed_json",
    b'{"id":1},null],"_frazil_null":[{"id":2}': "malformed_json",
    b'{"id":1}],"_frazil_null":[{"id":2}': "malformed_json",
    b'{"id":1}],"_frazil\\u005fnull":[{"id":2}': "malformed_json",
    b'{"id":1}],"_frazil_records":[{"id":2}': "malformed_json",
    b'{"id":1,"text":"_frazil_null","more":[null]}': GOOD,
    b'{"id":1},5],"x":[1': "malformed_json",
    b'{"id":1},[]],"x":[1': "malformed_json",
    b'{"id":1,"more":[{"a":null},null ],"text":"null]\\u0041"}': GOOD,
    b'{"id":1': "malformed_json",
    b'{/**/"id":1}': "malformed_json",
    b'{"id":tru}': "malformed_json",
    b'{"id":1,"text":"\xff"}': "invalid_utf8",
    b'{"id":1,"text":"\\ud800"}': "invalid_utf8",
    b'{"id":1,"id":2}': GOOD,
    b'{"id":1,"more":' + b"[" * 999 + b"]" * 999 + b"}": GOOD,
    b'{"id":1,"more":' + b"[" * 1000 + b"]" * 1000 + b"}": "malformed_json",
    b'{"id":1,"more":' + b'{"a":' * 999 + b"1" + b"}" * 1000: GOOD,
    b'{"id":1,"more":' + b'{"a":' * 1000 + b"1" + b"}" * 1001: "malformed_json",
    b'{"id":1,"text":"\\u0041","more":' + b"[" * 997 + b"]" * 997 + b"}": GOOD,
    b'{"id":1,"text":"\\u0041","more":' + b"[" * 998 + b"]" * 998 + b"}": "malformed_json",
    b"[1]": "not_an_object",
    b"1": "not_an_object",
    b'"x"': "not_an_object",
    b"null": "not_an_object",
    b'{"id":9223372036854775808}': "type_mismatch",
    b'{"id":"1"}': "type_mismatch",
    b'{"id":1.5}': "type_mismatch",
}


def draw(rnd: random.Random, depth: int = 0) -> str:
    """Write a random value of the grammar, with any white space between its tokens."""
    kinds = ["number", "text", "word", *(["array", "object"] if depth < 4 else [])]
    kind = rnd.choice(kinds)
    if kind == "number":
        sign, whole = rnd.choice(["", "-"]), rnd.choice(["0", str(rnd.randrange(1, 10**6))])
        part = rnd.choice(["", f".{rnd.randrange(1000):03}"])
        return sign + whole + part + rnd.choice(["", "e5", "E-07", "e+0"])
    if kind == "text":
        pieces = [
            "a",
            "ä",
            "\\n",
            "\\u0041",
            "\\ud83d\\ude00",
            "\U0001f600",
            '\\"',
            "\\/",
            " ",
            "]",
        ]
        return '"' + "".join(rnd.choices(pieces, k=rnd.randrange(6))) + '"'
    if kind == "word":
        return rnd.choice(["true", "false", "null"])
    inner = [draw(rnd, depth + 1) for _ in range(rnd.randrange(4))]
    if kind == "array":
        return "[" + blank(rnd) + f"{blank(rnd)},{blank(rnd)}".join(inner) + blank(rnd) + "]"
    pairs = [f'"k{n}"{blank(rnd)}:{blank(rnd)}{value}' for n, value in enumerate(inner)]
    return "{" + blank(rnd) + f"{blank(rnd)},{blank(rnd)}".join(pairs) + blank(rnd) + "}"


def blank(rnd: random.Random) -> str:
    return "".join(rnd.choices(" \t\n\r", k=rnd.choice([0, 0, 1, 3])))


def generate(seed: int, count: int) -> Iterator[bytes]:
    """Write whole documents, and documents with one character too few, too many or another one."""
    rnd = random.Random(seed)
    for number in range(count):
        begin = f'{{"id":{number}'
        document = f'{begin},"more":{draw(rnd)}}}'
        if rnd.random() < 0.5:
            place = rnd.randrange(len(begin), len(document))
            rest = document[place + rnd.randrange(2) :]
            document = document[:place] + rnd.choice(["", ",", "]", "}", '"', ":", "0", "x"]) + rest
        yield document.encode()


def is_good(document: bytes) -> bool:
    """Ask Python's reader, without the words that it knows beyond the grammar, nor half a pair."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        found = json.loads(document.decode(), parse_constant=refuse)
        json.dumps(found, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def read_outcomes(lab: Lab) -> dict[int, str]:
    """Return the reason of each letter, and `GOOD` for each row, by offset."""
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    rows = catalog.load_table(lab.table).scan().to_arrow().to_pylist()
    letters = catalog.load_table(f"{lab.table}__dead_letters").scan().to_arrow().to_pylist()
    return {r["_kafka"]["offset"]: GOOD for r in rows} | {
        r["_kafka"]["offset"]: str(r["reason"]) for r in letters
    }


def ingest(lab: Lab, values: list[bytes], workers_from: int) -> dict[int, str]:
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS},
        table={"name": lab.table},
        errors={"max_bad_ratio": 1.0},
        batch={"max_records": 10_000},
    )
    lab.create_topic(partitions=1)
    lab.produce(list(values), partitions=1)
    done = lab.frazil("run", lab.stream, **{MIN_RECORDS_VARIABLE: str(workers_from)})
    assert done.code == 0, done.err
    assert_audited(lab, lab.topic)
    return read_outcomes(lab)


@pytest.mark.core
@pytest.mark.parametrize("workers_from", [0, 10**9], ids=["workers first", "Spark alone"])
def test_each_rule_is_kept(lab: Lab, workers_from: int) -> None:
    outcomes = ingest(lab, [*RULES], workers_from)

    assert {value: outcomes[n] for n, value in enumerate(RULES)} == RULES
    twice = [*RULES].index(b'{"id":1,"id":2}')
    rows = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table).scan()
    (found,) = [r for r in rows.to_arrow().to_pylist() if r["_kafka"]["offset"] == twice]
    assert found["id"] == 2, "the last of two counts"


@pytest.mark.parametrize("workers_from", [0, 10**9], ids=["workers first", "Spark alone"])
def test_generated_documents_are_judged_as_a_strict_reader_does(
    lab: Lab, workers_from: int
) -> None:
    seed = secrets.randbelow(10**6)
    sys.stdout.write(f"seed {seed}\n")
    values = list(generate(seed, 2000))
    good = [is_good(value) for value in values]
    assert 500 < sum(good) < 1900

    outcomes = ingest(lab, values, workers_from)

    wrong = {
        values[n]: outcome
        for n, outcome in outcomes.items()
        if outcome not in ({GOOD} if good[n] else {"malformed_json", "invalid_utf8"})
    }
    assert not wrong
    assert len(outcomes) == len(values)
