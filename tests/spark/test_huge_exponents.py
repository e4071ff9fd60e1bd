"""No number keeps Spark's JSON parser busy for minutes: records that have one are never parsed.

The parser writes out all digits of a decimal such as `1e99999999`, also where the record is then
refused, or where another value of the same name follows.
"""

from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession
from support.decoding import decode_by_spark

from frazil.streams.column_types import parse_column
from frazil_spark.decode.decimals import find_misread_decimals

pytestmark = [pytest.mark.spark, pytest.mark.stack]

COLUMNS = {
    "id": "long!",
    "n": "decimal(9,2)",
    "ln": "list<decimal(9,2)>",
    "m": "map<string, decimal(9,2)>",
    "q": "list<struct<n: decimal(9,2)>>",
    "y": "binary",
    "s": "string",
}
HUGE = [
    b'{"id":1,"n":1e99999999}',
    b'{"id":1,"n":1e-99999999,"n":1}',
    b'{"id":1,"n":1,"n":1e99999999}',
    b'{"id":1,"n":1e99999999',
    b'{"id":1,"\\u006e":1E+99999999}',
    b'{"id":1,"\\u006e":1e99999999,"n":1}',
    b'{"id":1,"ln":[1,1e99999999]}',
    b'{"id":1,"ln":[1e99999999],"ln":[1]}',
    b'{"id":1,"l\\u006e":[0.5e0099999999],"ln":[1]}',
    b'{"id":1,"ln":[1]},{"ln":[1e99999999]}',
    b'[{"id":1},{"ln":[-1e99999999]}]',
    b'{"id":1,"y":"\n/wA=","ln":[1e99999999]}',
    b'{"id":1,"y":"\\\\","ln":[1e99999999],"s":"\\""}',
    b'{"id":1,"y":"\\"","ln":[1e99999999]',
    b'{"id":1,"m":{"a":1e-99999999,"a":1}}',
    b'{"id":1,"m":{"a":1e99999999},"m":{}}',
    b'{"id":1,"q":[{"n":1e99999999}],"q":[]}',
    b'{"id":1,"n":"1e99999999"}',
    b'{"id":1,"n":"1e99999999","n":1}',
    b'{"id":1,"n":"1e-99999999","n":1}',
    b'{"id":1,"n":"1e9,9,9,9,9,9,9,9","n":1}',
    b'{"id":1,"n":"1\\u0065+\\u003999999999","n":1}',
    b'{"id":1,"\\u006e":"1e99999999","n":1}',
    '{"id":1,"n":"1e٩٩٩٩٩٩٩٩","n":1}'.encode(),
    b'{"id":1,"n":"1e99999999"',
    b'{"id":1,"n":"1e99999999","s":1:2}',
    b'{"id":1,"m":{"a":"1e99999999"},"s":1:2}',
    b'{"id":1,"m":{"a":"1e99999999"},"m":{}}',
    b'{"id":1,"ln":["1e99999999"],"ln":[1]}',
    b'{"id":1,"q":[{"n":"1e99999999"}],"q":[]}',
    b'{"id":1,"ln":[1]},{"ln":["1e99999999"]}',
    b'{"id":1,"ln":[1]},null],"_frazil_null":[{"n":"1e99999999"}',
    b'{"id":1,"n":"%s","n":1}' % (b"7" * 1_000_000),
    b'{"id":1,"n":"%s\\u0037","n":1}' % (b"7" * 990),
    b'{"id":1,"n":"1e,+99999999","n":1}',
    b'{"id":1,"n":"1e%s9999999\\u0039","n":1}' % (b"0" * 500),
    b'{"id":1,"y":"\n/wA=","ln":["1e99999999"]}',
]
BEHIND_SHORT_NUMBERS = [
    b'{"id":1,"n":1,"n":"12,50"}',
    b'{"id":1,"n":null,"n":"1,5"}',
    b'{"id":1,"ln":[1,-2.25,"1,5"]}',
    b'{"id":1,"m":{"a":12345678901,"b":"1,5"}}',
    b'{"id":1,"q":[{"n":1},{"n":1.0000000000000000000000000000001}]}',
]
PLAIN = [
    b'{"id":1,"s":"[1e99999999, 2e99999","ln":[1.5]}',
    b'{"id":1,"s":"\\"1e99999999\\\\","ln":[1.5e00001]}',
    b'{"id":1,"\\u0066":1e99999,"ln":[1.5]}',
    b'{"id":1,"s":"1_0","m":{"a":"1.50","b":12.5e-1}}',
    b'{"id":1,"s":"a\\\\\\"b,1e99999999","ln":[1000000000000e-6]}',
    b'{"id":1,"s":"1e-99999999","m":{"a":"1.50"},"ln":[1000000000000e-6]}',
    b'{"id":1,"s":"0000-12-31","s":"1.7976931348623157e308","m":{"a":"1"}}',
    b'{"id":1,"s":"9E72-06-28","s":"x","m":{"a":"1"}}',
    b'{"id":1,"s":"\\u0e2a\\u0e27\\u0e31\\u0e2a\\u0e14\\u0e35\\u0e04\\u0e23","s":"x","m":{"a":"1"}}',
    b'{"id":1,"s":"\\u002B491701234567","s":"2026-01-31\\u002c12","m":{"a":"1"}}',
    b'{"id":1,"s":"%s","s":"x","m":{"a":"1"}}' % (b"-" * 1000),
    b'{"id":1,"s":"f79c3e09-677c-4bbd-a479-3f349cb785e7","s":"\\ud837\\udcca\\u4e2d","m":{"a":"1"}}',
]


def find_flagged(spark: SparkSession, payloads: Sequence[bytes]) -> list[bool]:
    """Return for each record whether the parser would misread it, or take too long."""
    columns = tuple(parse_column(name, text) for name, text in COLUMNS.items())
    condition = find_misread_decimals("value", columns)
    assert condition is not None
    given = spark.createDataFrame([*enumerate(payloads)], "place INT, value BINARY")
    rows = given.selectExpr("place", f"{condition} AS flagged").collect()
    return [row.flagged for row in sorted(rows)]


def test_a_number_with_a_huge_exponent_is_found_wherever_it_is(spark: SparkSession) -> None:
    found = find_flagged(spark, HUGE)

    assert [each for each, flagged in zip(HUGE, found, strict=True) if not flagged] == []
    reasons = {str(each) for each in decode_by_spark(spark, COLUMNS, HUGE, "json")}
    assert reasons == {"type_mismatch", "malformed_json", "not_an_object"}


def test_a_misread_value_is_found_behind_short_numbers(spark: SparkSession) -> None:
    assert find_flagged(spark, BEHIND_SHORT_NUMBERS) == [True] * len(BEHIND_SHORT_NUMBERS)
    found = decode_by_spark(spark, COLUMNS, BEHIND_SHORT_NUMBERS, "json")
    assert {*map(str, found)} == {"type_mismatch", "malformed_json"}  # a name comes twice


def test_texts_that_look_like_one_are_values(spark: SparkSession) -> None:
    assert find_flagged(spark, PLAIN) == [False] * len(PLAIN)
    found = decode_by_spark(spark, COLUMNS, PLAIN, "json")
    assert all(isinstance(each, dict) for each in found), found
