"""The forms that a text has for each type of a column, and SQL that accepts exactly these.

docs/types.md lists the forms. Patterns are compared with the whole text: Java's `$` also matches
before a line feed at the end.
"""

_DATE = "(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
_SECONDS = ":[0-9]{2}([.][0-9]{1,6}0*)?"
"""At most six digits, and zeros: Spark truncates to microseconds."""
_MINUTES = "[0-9]{2}:[0-9]{2}"
_ZONE = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_NUMBER = "-?[0-9]+([.][0-9]+)?"
FORMS = {
    "date": _DATE,
    "timestamp": f"{_DATE}[T ]{_MINUTES}({_SECONDS})?",
    "timestamptz": f"{_DATE}[T ]{_MINUTES}{_SECONDS}{_ZONE}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "decimal": f"{_NUMBER}([eE][+-]?0*[0-9]{{1,2}})?",
}
"""Type → pattern of its texts."""

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999 in days since 1970: other libraries than Java's cannot hold more."""
FIRST_SECOND, LAST_SECOND = FIRST_DAY * 86_400, (LAST_DAY + 1) * 86_400 - 1


def has_form(text: str, name: str) -> str:
    """Write the SQL that is true for a text in the form of a type."""
    return matches(text, FORMS[name])


def matches(text: str, pattern: str) -> str:
    """Write the SQL that is true for a text that a pattern matches as a whole."""
    return rf"{text} RLIKE r'^(?:{pattern})\z'"


def is_out_of_range(value: str, name: str) -> str | None:
    """Write the SQL that is true for a date or timestamp outside the years 1 to 9999; or None."""
    match name:
        case "date":
            return f"unix_date({value}) NOT BETWEEN {FIRST_DAY} AND {LAST_DAY}"
        case "timestamptz":
            return f"unix_seconds({value}) NOT BETWEEN {FIRST_SECOND} AND {LAST_SECOND}"
        case "timestamp":
            first, last = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
            return f"{value} NOT BETWEEN TIMESTAMP_NTZ'{first}' AND TIMESTAMP_NTZ'{last}'"
    return None


def is_plain_decimal(text: str, scale: int) -> str:
    """Write the SQL that is true for a decimal's text with at most `scale` digits behind the point.

    Zeros at the end are no digits; with an exponent they are counted: 12.50e-1 has two.
    """
    plain = f"-?[0-9]+([.](?=[0-9])[0-9]{{0,{scale}}}0*)?"
    mantissa = f"regexp_replace({text}, '[eE].*', '')"
    digits = f"length(rtrim('0', replace({mantissa}, '.', '')))"
    whole = f"length(substring_index({mantissa}, '.', 1))"
    exponent = f"try_cast(regexp_extract({text}, '[eE](.*)', 1) AS INT)"
    is_zero = matches(mantissa, "-?[0.]+")
    counted = f"({is_zero} OR {digits} - {whole} - {exponent} <= {scale})"
    with_exponent = f"{has_form(text, 'decimal')} AND {counted}"
    return f"coalesce({matches(text, plain)} OR {with_exponent}, false)"


def is_exact_variant(variant: str, scale: int) -> str:
    """Write the SQL that is true for a variant that a decimal of this scale holds exactly.

    A variant holds a number with an exponent, or with more than 38 digits, as a double, which may
    have lost digits.
    """
    text = f"try_variant_get({variant}, '$', 'STRING')"
    return f"schema_of_variant({variant}) != 'DOUBLE' AND {is_plain_decimal(text, scale)}"
