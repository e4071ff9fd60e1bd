"""Numbers of records that a site sets in the environment."""

import os

from frazil.errors import ConfigurationError


def read_limit(variable: str, default: int) -> int:
    """Read a number of records from the environment.

    Raises:
        ConfigurationError: it is no number.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ConfigurationError(
            f"{variable} is {text!r}, not a number of records",
            f"give a number such as {default}, or leave the variable out",
        )
    return int(text)
