"""The result of one check of `frazil doctor`."""

from collections.abc import Callable
from dataclasses import dataclass

from frazil.errors import FrazilError


@dataclass(frozen=True)
class Check:
    """The result of one check; `fix` is the next step if it failed."""

    name: str
    is_good: bool
    detail: str
    fix: str = ""


def failed(name: str, error: FrazilError) -> Check:
    """Return the check that failed with an error."""
    return Check(name, is_good=False, detail=error.facts, fix=error.next_step)


def attempt(name: str, probe: Callable[[], str]) -> Check:
    """Run a probe; the detail of the check is the probe's result, or its error."""
    try:
        return Check(name, is_good=True, detail=probe())
    except FrazilError as error:
        return failed(name, error)
