"""`frazil doctor`: what is missing on this machine, and the fix for each."""

from dataclasses import asdict

import typer

from frazil.cli.output import Json, console, print_json, print_table
from frazil.stack.doctor import examine
from frazil.stack.settings import load_settings


def doctor(as_json: Json = False) -> None:
    """Check machine, installation and running stack; exit 1 when something needs a fix.

    Example: frazil doctor
    """
    checks = examine(load_settings())
    bad = [check for check in checks if not check.is_good]
    if as_json:
        print_json({"is_good": not bad, "checks": [asdict(check) for check in checks]})
    else:
        rows = [(check.name, "ok" if check.is_good else "FIX", check.detail) for check in checks]
        print_table("frazil doctor", ("check", "", "found"), rows)
        for check in bad:
            console.print(f"{check.name}: {check.fix}", markup=False)
    if bad:
        raise typer.Exit(1)
