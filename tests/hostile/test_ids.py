"""Text from logs on its way through queries, pages, XML and spreadsheets: it arrives as it is, and does nothing."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from fuzz.small import LOGS
from helpers.cases import SAMPLES
from helpers.command import run

IDS = [
    "'; DROP TABLE uses; --",
    '" OR 1=1; COPY uses TO \'stolen\'; --',
    "%' UNION SELECT content FROM read_text('/etc/passwd') --",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]><!-- &amp; <x>",
    "<!ENTITY x SYSTEM 'file:///etc/passwd'>&x;",
    "=HYPERLINK(\"http://evil\")",
    "| a | [x](javascript:alert(1)) | `b`",
    "{{ 7*7 }}{% raw %}",
    "${jndi:ldap://x}%s%n{0}\\N{BULLET}",
    "../../../../etc/passwd",
]  # fmt: skip
OUTPUTS = ["sarif:x.sarif", "junit:x.xml", "markdown:x.md", "github:x.txt", "json:x.json"]


@pytest.mark.slow
def test_ids_are_text_to_every_language_they_pass_through(event_log: Any, tmp_path: Path) -> None:
    """Each id is a trajectory, a group, a worker and a reason; all are trained at staleness 2, so all are told of."""
    log = event_log("run", bound=1, framework=IDS[3], config={text: text for text in IDS})
    for text in IDS:
        log.add("admitted", trajectory_id=text, group_id=text, version=0, ts=1.0)
        log.add("span", trajectory_id=text, tokens=3, version=0, ts=2.0, worker=text)
        log.add("trained", trajectory_id=text, step=2, ts=5.0)
        log.add("span", trajectory_id=f"dropped {text}", tokens=1, version=0, ts=2.0)
        log.add("dropped", trajectory_id=f"dropped {text}", reason=f"other:{text}", ts=3.0)
    path = log.add("step", step=2, version=2, started=5.0, ended=6.0).close()
    outputs = [part for each in OUTPUTS for part in ("--output", each)]
    assert run("audit", path, "--worst", 50, "--html", "x.html", *outputs).exit_code == 1
    data = json.loads(Path("x.json").read_text())
    assert {row["trajectory_id"] for row in data["violations"]["worst"]} == set(IDS)
    assert set(data["tokens"]["dropped"]) == {f"other:{text}" for text in IDS}
    page = Path("x.html").read_text()
    plain = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    for text in IDS[3:7]:
        assert html.escape(text, quote=False).split("&")[0] in plain.replace("&#34;", '"').replace("&#39;", "'")
        assert text not in page
    assert page.count("<script") == page.count("</script>")
    assert ET.parse("x.xml").getroot().tag == "testsuites"
    assert "\n| a |" not in Path("x.md").read_text()
    for text in IDS[:4]:
        assert run("explain", path, text).exit_code == 0
    shown = run("sql", path, "SELECT DISTINCT trajectory_id FROM uses", "--format", "json")
    assert sorted(json.loads(line)["trajectory_id"] for line in shown.stdout.splitlines()) == sorted(IDS)
    assert run("export", path, "--format", "csv", "--output", "csv").exit_code == 0
    with Path("csv/uses.csv").open(newline="") as file:
        read = {row["trajectory_id"] for row in csv.DictReader(file)}
    assert read == {f"'{text}" if text.startswith("=") else text for text in IDS}
    assert run("export", path, "--output", "trace.json").exit_code == 0
    json.loads(Path("trace.json").read_text())
    assert not Path("stolen").exists()


BOMB = b'{"kind": "span", "a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"


def bombed(case: Path, target: Path, tables: Path) -> dict[str, Any]:
    """Audit a copy of a case into whose logs a line of JSON 200,000 levels deep was put."""
    shutil.copytree(case, target)
    for file in target.rglob("*"):
        if file.suffix in LOGS:
            lines = file.read_bytes().splitlines(keepends=True)
            half = len(lines) // 2
            file.write_bytes(b"".join([*lines[:half], BOMB, *lines[half:]]))
        elif file.suffix == ".json":
            file.write_bytes(BOMB)
    shown = run("audit", target, "--format", "json", "--tables", tables)
    assert shown.exit_code in (0, 1, 3), (shown.output, shown.exception)
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_a_line_of_a_log_may_be_nested_without_end(two_step_run: Any, tmp_path: Path) -> None:
    data = bombed(two_step_run("run", bound=2), tmp_path / "bombed", tmp_path / "t")
    assert data["verdict"] == "inconclusive"
    assert data["trajectories"]["seen"]["lo"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.iterdir() if path.is_dir()))
def test_files_of_every_format_may_be_nested_without_end(name: str, tmp_path: Path) -> None:
    case = min((SAMPLES / name).glob("*/run"), key=lambda run: sum(file.stat().st_size for file in run.rglob("*")))
    bombed(case, tmp_path / "bombed", tmp_path / "t")
