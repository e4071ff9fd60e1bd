"""The cases of the failure catalogue: which tests show each, and what a run says of them.

`python tests/faults/cases.py` lists the tests outside of this folder that show a case.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

REPO = Path(__file__).parents[2]
PAGE = REPO / "docs" / "guarantees.md"
HERE = "tests/faults/"
CASE = r"[A-L]-?\d+"
NAMED = re.compile(r"`(tests/[\w/]+\.py::\w+)`")
PREFIX = re.compile(r"::test_((?:[a-l]\d+_)+)")


def read_page(page: str) -> dict[str, set[str]]:
    """Return the cases of each test that the page of guarantees names."""
    cases: defaultdict[str, set[str]] = defaultdict(set)
    for line in page.splitlines():
        if row := re.match(rf"\| ({CASE}) \|", line):
            for test in NAMED.findall(line):
                cases[test].add(row[1])
    return dict(cases)


def read_inputs(page: str) -> dict[str, list[str]]:
    """Return what each case injects, the smallest input first."""
    rows = re.findall(rf"^\| ({CASE}) \| (.+?) \| ", page, re.MULTILINE)
    return {case: injected.split("; ") for case, injected in rows}


def name_cases(test: str) -> set[str]:
    """Return the cases that a test's own name begins with."""
    found = PREFIX.search(test)
    words = found[1].rstrip("_").upper().split("_") if found else []
    return {word.replace("I", "I-") for word in words}


def summarize(outcomes: Mapping[str, str], page: str) -> list[str]:
    """Write a line for each input of the cases that were run, and the total.

    Args:
        outcomes: how each test ended: `passed`, `failed` or `skipped`, by pytest's id.
        page: the text of the page of guarantees.
    """
    named, inputs = read_page(page), read_inputs(page)
    by_case: defaultdict[str, Counter[str]] = defaultdict(Counter)
    counted: Counter[str] = Counter()
    for test, outcome in outcomes.items():
        plain = test.partition("[")[0]
        cases = named.get(plain, set()) | name_cases(plain)
        counted[outcome] += bool(cases)
        for case in cases:
            by_case[case][outcome] += 1
    shown = sum(1 for found in by_case.values() if found["passed"] and not found["failed"])
    lines = []
    for case in sort_cases(by_case):
        first, *others = inputs.get(case, [""])
        lines.append(f"{case:<5}{write_counts(by_case[case]):<22}{first}".rstrip())
        lines += [f"{'':27}{other}" for other in others]
    total = f"{shown} cases shown, {counted.total()} tests, {counted['failed']} failed"
    return [*lines, total]


def summarize_kills(tallies: Iterable[Mapping[str, int]]) -> list[str]:
    """Write one line for each kill point and how often it was one, and the total."""
    from faults.tally import RECOVERED  # noqa: PLC0415 - as a script this file has no package

    total: Counter[str] = Counter()
    for counted in tallies:
        total.update(counted)
    kills = {name: number for name, number in sorted(total.items()) if name.startswith("kill at ")}
    judged, held = (total[name] for name in ("tables judged", "tables that held"))
    lines = [f"{name:<42}{number}" for name, number in kills.items()]
    lines.append(f"{len(kills)} kill points, {sum(kills.values())} kills")
    took = sorted(
        seconds
        for name, number in total.items()
        if name.startswith(RECOVERED)
        for seconds in [int(name.removeprefix(RECOVERED))] * number
    )
    if took:
        most = f"{took[len(took) // 2]} s (median), {took[-1]} s (all)"
        lines.append(f"the next run mended {len(took)} of them in at most {most}")
    if judged:
        end = "nothing lost, nothing doubled" if held == judged else "RECORDS LOST OR DOUBLED"
        lines.append(f"{held} of {judged} tables held by both audits: {end}")
    return lines


def write_counts(counts: Mapping[str, int]) -> str:
    """Write `2 passed, 1 failed`."""
    kinds = ("passed", "failed", "skipped")
    return ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts[kind])


def sort_cases(cases: Iterable[str]) -> list[str]:
    """Sort as the catalogue does."""
    return sorted(cases, key=lambda case: (case[0], int(case[1:].lstrip("-"))))


if __name__ == "__main__":
    tests = sorted(test for test in read_page(PAGE.read_text()) if not test.startswith(HERE))
    sys.stdout.write("\n".join(tests) + "\n")
