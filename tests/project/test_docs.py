"""The documentation says what the code does: commands, options, paths and generated pages."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from frazil.ledger.recovery_point import keys
from frazil.schemas.wire_format import UNDECIDED, UNREADABLE
from frazil.streams.reference import write_reference
from frazil_cli.main import app
from frazil_spark.decode.change_events import (
    NO_ENVELOPE,
    NO_KEY,
    OTHER_KEY,
    TRUNCATE,
    UNKNOWN_ENCODING,
)

PROJECT = Path(__file__).parents[2]
PAGES = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])
ROOT = typer.main.get_command(app)
TOP = {"include", "spark_jobs", "dags", "tests", "docs", ".ci"}
PLACEHOLDER = re.compile(r"[<>*…{}$]|\bname\b")
GENERATED = {"docs/streams.md"}
PLANS = {"docs/features.md"}
"""A page that also speaks of what is to come."""


def name_of(page: Path) -> str:
    """Name a page by its path in the project."""
    return str(page.relative_to(PROJECT))


def code_of(text: str) -> Iterator[str]:
    """Yield inline code and the lines of code blocks."""
    for index, part in enumerate(text.split("```")):
        if index % 2:
            yield from (line.strip() for line in part.splitlines()[1:])
        else:
            yield from re.findall(r"`([^`\n]+)`", part)


def commands_of(page: Path) -> set[str]:
    """List the `frazil …` commands that a page shows, without comments."""
    found = set()
    for code in code_of(page.read_text()):
        match = re.match(r"(?:\$ )?(?:\.venv/bin/)?(frazil( .*)?)$", code.partition("  #")[0])
        if match:
            found.add(match[1].strip())
    return found


def find_command(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    """Walk down to the command that these words name; give it and the words that are left."""
    command: TyperCommand | TyperGroup = ROOT
    while words and isinstance(command, TyperGroup) and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command, words


def explain_wrong_command(text: str) -> str | None:
    """Say which options of a command the code does not have, or asks for; None if it is right."""
    words = [w for w in shlex.split(text.replace("…", "X"))[1:] if w != "|"]
    command, rest = find_command(words)
    if isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        return f"no command {rest[0]!r}"
    options = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    given = {word for word in rest if word.startswith("--")}
    required = {p.opts[0] for p in command.params if p.required and p.opts[0].startswith("--")}
    unknown = given - options - {"--help"}
    missing = required - given if given else set()
    return f"unknown: {unknown}, missing: {missing}" if unknown or missing else None


def paths_of(page: Path) -> set[str]:
    """List the project's paths that a page names in code, without placeholders."""
    found = set()
    for code in code_of(page.read_text()):
        for word in re.findall(r"[\w.<>*…{}$/-]+", code):
            is_path = "/" in word and word.split("/")[0] in TOP
            if is_path and not PLACEHOLDER.search(word):
                found.add(word.rstrip("/."))
    return found


def links_of(page: Path) -> set[str]:
    """List the relative targets of a page's links."""
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    return {target for target in targets if "://" not in target}


@pytest.mark.parametrize("page", [p for p in PAGES if name_of(p) not in PLANS], ids=name_of)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    problems = {command: explain_wrong_command(command) for command in commands_of(page)}

    assert {command: problem for command, problem in problems.items() if problem} == {}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    assert [path for path in sorted(paths_of(page)) if not (PROJECT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert [t for t in sorted(links_of(page)) if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_that_a_page_shows_exists(page: Path) -> None:
    makefile = (PROJECT / "Makefile").read_text()
    shown = {
        code.split()[1] for code in code_of(page.read_text()) if re.match(r"make [a-z-]+\b", code)
    }

    assert [t for t in sorted(shown) if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/operate.md"])
def test_the_first_command_of_a_page_can_be_found_by_the_shell(page: str) -> None:
    text = (PROJECT / page).read_text()

    lines = [line for code in text.split("```sh")[1:] for line in code.split("```")[0].splitlines()]
    first = next(index for index, line in enumerate(lines) if line.startswith("frazil "))

    assert any(line.startswith('export PATH="$PWD/.venv/bin:$PATH"') for line in lines[:first])


def test_every_command_is_on_the_operators_page() -> None:
    shown = {text.split()[1] for text in commands_of(PROJECT / "docs/operate.md") if " " in text}

    assert isinstance(ROOT, TyperGroup)
    assert sorted(set(ROOT.commands) - shown) == []


def test_the_reference_of_stream_files_is_up_to_date() -> None:
    page = (PROJECT / "docs/streams.md").read_text()

    assert page == write_reference(), "run `make docs`"


def test_the_readme_can_be_read_in_one_go() -> None:
    lines = (PROJECT / "README.md").read_text().splitlines()

    assert len(lines) <= 120


def test_the_changelog_keeps_its_form() -> None:
    text = (PROJECT / "CHANGELOG.md").read_text()

    assert "keepachangelog.com" in text
    assert re.search(r"^## \[Unreleased\]$", text, re.MULTILINE)
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert len(re.findall("^## ", text, re.MULTILINE)) == 1 + len(released)
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) <= {
        *("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }


def test_each_decision_record_has_a_number_of_its_own() -> None:
    paths = sorted((PROJECT / "docs/decisions").glob("*.md"))
    numbers = range(1, len(paths) + 1)

    assert [path.name[:4] for path in paths] == [f"{number:04}" for number in numbers]
    assert [path.read_text().split()[1] for path in paths] == [f"{number}." for number in numbers]


def test_every_dependency_has_its_line_of_why() -> None:
    page = (PROJECT / "docs/decisions/0002-dependencies.md").read_text()
    requirements = (PROJECT / "requirements.txt").read_text()
    names = re.findall(r"^([A-Za-z0-9-]+)", requirements, re.MULTILINE)

    assert len(names) > 20
    assert [name for name in names if f"| `{name}` |" not in page] == []


def test_every_key_that_is_written_into_a_table_is_explained() -> None:
    page = (PROJECT / "docs/formats.md").read_text()
    names = [value for name, value in vars(keys).items() if name.isupper()]

    assert [name for name in names if isinstance(name, str) and name not in page] == []


def test_every_kind_of_snapshot_is_said_in_keys_alone() -> None:
    page = (PROJECT / "docs/formats.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| `frazil.kind` |"))
    kinds = set(re.findall(r"`([a-z]+)`", row))
    sources = [p for p in (PROJECT / "include/frazil").rglob("*.py") if p.stem != "keys"]

    assert kinds == {getattr(keys, kind.upper()) for kind in kinds}
    assert [p.stem for p in sources for k in kinds if f'= "{k}"\n' in p.read_text()] == []


def test_every_reason_of_a_dead_letter_is_explained() -> None:
    page = (PROJECT / "docs/formats.md").read_text()
    files = (PROJECT / "spark_jobs/frazil_spark").rglob("*.py")
    source = "".join(path.read_text() for path in files)
    reasons = set(re.findall(r"(?:THEN|ELSE) '([a-z0-9_]+)'", source))
    reasons |= {f"malformed_{word}" for word in ("avro", "protobuf")}
    reasons |= {
        "other_message",
        "unknown_schema_id",
        "unknown_route",
        *(NO_ENVELOPE, NO_KEY, OTHER_KEY, UNKNOWN_ENCODING, TRUNCATE),
        *(UNDECIDED, UNREADABLE),
        keys.DECODER_FAILED,
    }
    table = page.partition("| reason | the record |")[2].partition("\n\n")[0]

    assert set(keys.DEAD_LETTER_REASONS) == reasons
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == reasons


def test_the_invariants_of_the_architecture_are_all_there() -> None:
    page = (PROJECT / "ARCHITECTURE.md").read_text()

    assert re.findall(r"^\*\*I(\d+)\*\*", page, re.MULTILINE) == [str(n) for n in range(1, 11)]


@pytest.mark.parametrize(
    "text",
    [
        "frazil stauts",
        "frazil stack sideways",
        "frazil status --jsn",
        "frazil waive flights --by X",
    ],
)
def test_a_wrong_command_is_noticed(text: str) -> None:
    assert explain_wrong_command(text)


QUESTIONS = {
    "What is the recovery point when topic and table disagree?": "recovery point when topic",
    "Which offsets are in this snapshot, which snapshot holds this offset?": "Which offsets are",
    "Which schema changes are automatic, and who decides the others?": "Which schema changes are",
    "How far behind may the table be before someone is called?": "How far behind may",
    "Can these offsets be replayed without duplicates?": "be replayed without duplicates",
    "Who owns schema, namespace, catalog permission, retention?": "Who owns schema",
    "What happens to partial and orphan files?": "partial and orphan files",
    "How do I roll back and keep the audit?": "roll back and keep the audit",
    "Does Kafka's retention cover a weekend's outage?": "cover a weekend's outage",
    "What happened, in order of time?": "in order of time",
    "What does it cost per stream per day, and what would twice the freshness cost?": (
        "cost per stream per day, and what would twice the freshness cost"
    ),
    "What happens when partitions grow?": "when partitions grow",
    "How do I move here from a connector, and back?": "move here from a connector",
    "What about late data?": "late data",
    "Is this stream ready for production?": "ready for production",
}
"""Section C of docs/features.md, and what each question's heading holds."""


def test_the_questions_are_those_of_the_list() -> None:
    listed = (PROJECT / "docs" / "features.md").read_text().partition("\n## C.")[2]
    asked = " ".join(listed.partition("\n## ")[0].split()).partition("one page: ")[2]

    assert set(QUESTIONS) == set(asked.split(" · "))


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_of_an_operator_has_one_heading_with_a_command_and_a_page(
    question: str,
) -> None:
    page = (PROJECT / "docs" / "operate.md").read_text()
    sections = [part.split("\n", 1) for part in page.split("\n## ")[1:]]
    found = [body for heading, body in sections if QUESTIONS[question] in heading]

    assert len(found) == 1
    linked = "".join(
        (PROJECT / "docs" / n).read_text() for n in re.findall(r"\((\w+\.md)", found[0])
    )
    command = re.compile(r"^frazil \w", re.MULTILINE)
    told = found[0] if command.search(found[0]) else linked
    assert command.search(told)
    assert re.search(r"\bDAG\b|\bpage\b", told)
