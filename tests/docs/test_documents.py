"""README and docs say what the code does: generated parts are compared, examples are run."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import build_docs
import jsonschema
import pytest

FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<fence>```+)(?P<language>\w+)\n(?P<body>.*?)^(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)
DOCUMENTS = {str(path.relative_to(build_docs.ROOT)): path for path in build_docs.documents()}
EXECUTED = {"bash", "python"}
SHOWN = {"console", "text", "json", "jsonl", "toml", "yaml", "sql"}


def generated() -> list[tuple[str, str]]:
    return [
        (name, found["what"])
        for name, path in DOCUMENTS.items()
        for found in build_docs.BLOCK.finditer(path.read_text())
    ]


def examples(path: Path) -> Iterator[tuple[str, str, str]]:
    """Language, body and the remark before it, of each fenced block outside generated parts."""
    for found in FENCE.finditer(build_docs.BLOCK.sub("", path.read_text())):
        yield found["language"], found["body"], found["mark"] or ""


@pytest.mark.parametrize(("document", "what"), generated())
def test_generated_parts_are_up_to_date(document: str, what: str) -> None:
    bodies = [
        found["body"] for found in build_docs.BLOCK.finditer(DOCUMENTS[document].read_text()) if found["what"] == what
    ]
    fresh = build_docs.generate(what)
    assert all(body == fresh for body in bodies), f"{document}: run `make docs` to write {what!r} anew"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_run(document: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one document run in order, in one folder beside `sample_traces`; Python blocks share their names.

    `<!-- exit: 1 -->` before a block states the exit code of its last command; `<!-- not run: why -->` leaves it out.
    """
    names: dict[str, object] = {"__name__": "example"}
    with build_docs.workspace() as folder:
        monkeypatch.chdir(folder)
        for language, body, mark in examples(DOCUMENTS[document]):
            assert language in EXECUTED | SHOWN, (
                f"{document}: a block of {language} is neither run nor known to be shown only"
            )
            if mark.startswith("not run:") or language in SHOWN:
                continue
            if language == "python":
                exec(compile(body, f"{document} example", "exec"), names)
                continue
            code, output = build_docs.shell(body, folder)
            wanted = int(mark.removeprefix("exit:")) if mark.startswith("exit:") else 0
            assert code == wanted, f"{document}: exit code {code} of\n{body}\n{output}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_shown_data_is_well_formed(document: str) -> None:
    schema = json.loads((build_docs.ROOT / "docs/schema/staleness-events-1.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    for language, body, _ in examples(DOCUMENTS[document]):
        if language == "toml":
            tomllib.loads(body)
        elif language == "json":
            json.loads(body)
        elif language == "jsonl":
            for line in body.splitlines():
                validator.validate(json.loads(line))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    path = DOCUMENTS[document]
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{document}: {target} does not exist"


def test_every_column_of_tables_and_products_has_a_meaning() -> None:
    text = build_docs.generate("tables") + build_docs.generate("products")
    assert text.count("| `trajectory_id` |") > 4
    assert [line for line in text.splitlines() if line.endswith("| - |")] == []
