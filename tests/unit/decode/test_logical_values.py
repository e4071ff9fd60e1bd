"""Values of logical types: each has its form, and what has another one is a dead letter."""

import pytest
from support.flat_events import CONNECT, DEBEZIUM, flatten_text

from frazil_spark.decode.change_events import Flat

TIME = f"{DEBEZIUM}.time"
DECIMAL: dict[str, object] = {"name": f"{CONNECT}.Decimal", "parameters": {"scale": "2"}}
VARIABLE: dict[str, object] = {"name": f"{DEBEZIUM}.data.VariableScaleDecimal"}
NO_NUMBERS = ['"1_9"', '"1_000"', '" 5 "', '"٣"', '"5"', '""', "true", "1.5", "1e3", "[5]", "{}"]
MISFIT = Flat(None, fault="type_mismatch", detail="x has a wrong form")


@pytest.mark.parametrize("kind", ["decimal(38,2)", "double", "string"])
@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        (DECIMAL, '""'),
        (DECIMAL, "true"),
        (DECIMAL, "[1]"),
        (DECIMAL, '"123"'),
        (DECIMAL, '"12 34"'),
        (DECIMAL, '"12.34"'),
        (DECIMAL, '"٣٣٣٣"'),
        ({**DECIMAL, "type": "string"}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": "٣"}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": "1_0"}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": " 2"}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": "2.0"}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": None}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": "16384"}}, '"1234"'),
        (VARIABLE, '{"scale": 2, "value": ""}'),
        (VARIABLE, '{"scale": 2, "value": 1234}'),
        (VARIABLE, '{"scale": 2, "value": true}'),
        (VARIABLE, '{"scale": 2, "value": null}'),
        (VARIABLE, '{"scale": 2}'),
        (VARIABLE, '{"scale": "٣", "value": "1234"}'),
        (VARIABLE, '{"scale": true, "value": "1234"}'),
        (VARIABLE, '{"scale": 1.0, "value": "1234"}'),
        (VARIABLE, '{"scale": -131073, "value": "1234"}'),
        (VARIABLE, '{"scale": 2147483647, "value": "1234"}'),
    ],
    ids=str,
)
def test_what_is_no_decimal_is_never_one(schema: dict[str, object], sent: str, kind: str) -> None:
    assert flatten_text(kind, schema, sent) == MISFIT


@pytest.mark.parametrize(
    "sent", ['"1_9"', '" 5 "', '"٣"', '"5"', "true", "1.5", "1e3", "[5]", "{}"]
)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("date", f"{TIME}.Date"),
        ("date", f"{CONNECT}.Date"),
        ("int", f"{TIME}.Date"),
        ("string", f"{TIME}.Date"),
        ("timestamp", f"{TIME}.Timestamp"),
        ("timestamp", f"{TIME}.MicroTimestamp"),
        ("long", f"{TIME}.MicroTimestamp"),
        ("string", f"{TIME}.NanoTimestamp"),
        ("long", f"{TIME}.Time"),
        ("string", f"{TIME}.MicroTime"),
        ("string", f"{TIME}.NanoTime"),
    ],
)
def test_a_date_or_time_is_a_whole_number(kind: str, name: str, sent: str) -> None:
    assert flatten_text(kind, {"name": name}, sent) == MISFIT


@pytest.mark.parametrize("name", [f"{TIME}.Date", f"{TIME}.MicroTimestamp", f"{TIME}.MicroTime"])
def test_a_number_of_many_digits_is_no_time(name: str) -> None:
    assert flatten_text("string", {"name": name}, "9" * 5000) == MISFIT


@pytest.mark.parametrize(
    ("kind", "name", "sent"),
    [
        ("date", f"{TIME}.Date", -719163),
        ("date", f"{TIME}.Date", 2932897),
        ("decimal(9,0)", f"{TIME}.Date", 2932897),
        ("timestamp", f"{TIME}.MicroTimestamp", 2**63 - 1),
        ("timestamp", f"{TIME}.Timestamp", -(2**63)),
    ],
)
def test_a_time_outside_the_years_of_its_column_is_a_dead_letter(
    kind: str, name: str, sent: int
) -> None:
    assert flatten_text(kind, {"name": name}, str(sent)) == MISFIT


def test_a_misfit_inside_a_value_is_one_too() -> None:
    schema = {"type": "array", "items": {"name": f"{TIME}.Date"}}

    assert flatten_text("list<date>", schema, '[1, "1_9"]') == MISFIT
