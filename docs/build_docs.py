"""Writes the generated parts of README.md and docs/*.md anew (`make docs`); tests compare them with what is committed.

A generated part stands between `<!-- generated: WHAT -->` and `<!-- end -->`, where WHAT is one of

    output COMMAND   the command and what it prints, at 100 columns without colour, and its exit code if not 0
    help [COMMAND]   `staleness-audit COMMAND --help`
    file PATH        the contents of a file of the repository
    tables | products | kinds | reported | figures | frameworks | modes | losses   from the code and the parsers' cards
    action           inputs and outputs of the GitHub action
    samples          the recorded cases and what is true of them
    guarantees       what the prover finds about every simulated policy
    throughput       what reading each artifact takes of a core, from benchmarks/RESULTS.md

Commands run in a scratch folder that holds a copy of `sample_traces`, so that nothing is left in the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import yaml

from staleness_audit import plugins
from staleness_audit.check.figures import FIGURES
from staleness_audit.check.reported import CANONICAL
from staleness_audit.rebuild import modules
from staleness_audit.report.terminal.schema import COLUMNS, GRAINS
from staleness_audit.simulate.guarantees import table
from staleness_audit.tables import EVENT_KINDS, SCHEMAS

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
BLOCK = re.compile(r"(<!-- generated: (?P<what>[^\n]*?) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """All Markdown files whose parts are generated and whose examples are run."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "sample_traces" / "README.md"]
    return [*pages, *sorted((ROOT / "docs").glob("*.md"))]


# ------------------------------------------------------------------------------------------------- running commands


@contextmanager
def workspace() -> Iterator[Path]:
    """Yield a scratch folder with the sample runs, which examples only read (links, where the file system has them)."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "sample_traces", Path(folder) / "sample_traces", copy_function=_link)
        yield Path(folder).resolve()


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def shell(command: str, folder: Path) -> tuple[int, str]:
    """Run a command line as a reader would, and return its exit code and everything it prints (paths relative).

    `staleness-audit` and `python` are those of the running interpreter, whether or not its environment is activated.
    """
    bin_folder = folder / ".bin"
    if not bin_folder.exists():
        bin_folder.mkdir()
        _script(bin_folder / "python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        _script(
            bin_folder / "staleness-audit",
            f"#!{bin_folder}/python\nfrom staleness_audit.cli import main\n\nmain()\n",
        )
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    environment |= {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "COLUMNS": str(WIDTH),
        "LINES": "50",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],  # noqa: S607 - the reader's shell, wherever it is
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout.replace(f"{folder}/", "")


def _script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _fenced(text: str, language: str = "text") -> str:
    fence = "````" if "```" in text else "```"
    lines = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
    return f"{fence}{language}\n{lines}\n{fence}\n"


def _output(command: str) -> str:
    with workspace() as folder:
        code, text = shell(command, folder)
    shown = f"$ {command}\n{text.rstrip()}\n"
    return _fenced(shown + (f"$ echo $?\n{code}\n" if code else ""), "console")


def _help(command: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        _, text = shell(f"staleness-audit {command} --help", Path(folder))
    return _fenced(text)


def _file(path: str) -> str:
    language = "jsonl" if path.endswith(".jsonl") else Path(path).suffix.lstrip(".")
    return _fenced((ROOT / path).read_text(encoding="utf-8"), language)


# ------------------------------------------------------------------------------------------------- from the code


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ") or "-"


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _type(arrow: pa.DataType) -> str:
    return (
        "string" if pa.types.is_dictionary(arrow) else str(arrow).replace("timestamp[us, tz=UTC]", "timestamp[us, UTC]")
    )


def _tables(_: str) -> str:
    parts = []
    for name, schema in SCHEMAS.items():
        rows: list[tuple[object, ...]] = [
            (f"`{field.name}`", _type(field.type), COLUMNS.get(field.name, "")) for field in schema
        ]
        grain = GRAINS.get(name, "")
        parts.append(f"### `{name}`\n\n{_sentence(grain)}\n\n" + _table(("column", "type", "meaning"), rows))
    return "\n".join(parts)


def _products(_: str) -> str:
    """Columns that a module passes on without a word mean what they mean where they come from."""
    meanings: dict[str, str] = dict(COLUMNS)
    parts = []
    for module in modules():
        meanings |= {name: meaning for name, meaning in module.columns if meaning and not meaning.startswith("as in ")}
        kept = "Published." if module.published else "Intermediate."
        kept += " Per partition of the trajectories." if module.stage == "part" else ""
        rows: list[tuple[object, ...]] = [
            (f"`{name}`", meaning or meanings.get(name, "")) for name, meaning in module.columns
        ]
        head = f"### `{module.product}`\n\n{_sentence(module.grain)} From {', '.join(module.sources)}. {kept}\n\n"
        parts.append(head + _table(("column", "meaning"), rows))
    return "\n".join(parts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _kinds(_: str) -> str:
    return ", ".join(f"`{kind}`" for kind in EVENT_KINDS) + "\n"


def _reported(_: str) -> str:
    return _table(("name", "meaning"), [(f"`{name}`", meaning) for name, meaning in CANONICAL.items()])


def _figures(_: str) -> str:
    kinds = {"share": "share, 0 to 1", "word": "word or truth value", "versions": "versions", "tokens": "tokens"}
    rows = [(f"`{figure.path}`", figure.title, kinds.get(figure.kind, figure.kind)) for figure in FIGURES]
    return _table(("figure", "meaning", "kind"), list(rows))


def _action(_: str) -> str:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    inputs = [(f"`{name}`", given["description"]) for name, given in action["inputs"].items()]
    outputs = [(f"`{name}`", given["description"]) for name, given in action["outputs"].items()]
    return _table(("input", "meaning"), list(inputs)) + "\n" + _table(("output", "meaning"), list(outputs))


def _frameworks(_: str) -> str:
    rows: list[tuple[object, ...]] = []
    for name, parser in plugins.parsers().items():
        keys = dict.fromkeys(mode.bound_key for mode in parser.card.modes if mode.bound_key)
        rows.append(
            (f"`{name}`", parser.card.title, parser.card.unit, ", ".join(f"`{key}`" for key in keys) or "states none")
        )
    return _table(("name", "format", "one version is", "bound"), rows)


def _modes(_: str) -> str:
    parts = []
    for name, parser in plugins.parsers().items():
        card = parser.card
        strict = {True: "yes", False: "no", None: "not known"}
        modes = [
            (
                mode.name,
                f"`{mode.bound_key}`" if mode.bound_key else "-",
                mode.conversion,
                strict[mode.strict],
                mode.limit,
                mode.reason,
            )
            for mode in card.modes
        ]
        figures = [(f"`{figure.raw_name}`", figure.measures) for figure in card.figures]
        artifacts = [(f"`{artifact.path}`", artifact.switch, artifact.proves) for artifact in card.artifacts]
        parts.append(
            f"## `{name}`: {card.title}\n\nOne version is one of: {card.unit}.\n\n"
            + _table(("artifact", "how to switch it on", "what it proves"), artifacts)
            + "\n"
            + _table(("mode", "knob", "bound on `v_train - v_gen`", "strict", "true limit", "why"), modes)
            + (f"\n{_table(('its own figure', 'is'), figures)}" if figures else "")
            + f"\nWhat betrays a loss: {card.betrays}\n"
        )
    return "\n".join(parts)


def _losses(_: str) -> str:
    return _table(
        ("format", "what betrays a loss, and what nothing does"),
        [(f"`{name}`", parser.card.betrays) for name, parser in plugins.parsers().items()],
    )


def _samples(_: str) -> str:
    figures = ("steps", "trained_trajectories", "trained_tokens", "max_staleness", "violating_trajectories")
    rows: list[tuple[object, ...]] = []
    for path in sorted((ROOT / "sample_traces").glob("*/*/expected.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        name = f"`{path.parent.relative_to(ROOT / 'sample_traces')}`"
        truths = (case["truth"].get(figure, "") for figure in (*figures, "violating_tokens"))
        rows.append((name, " ".join(case["argv"]), " or ".join(case["verdict"]), *truths))
    head = ("case", "arguments", "verdict", "steps", "trained", "tokens", "largest staleness")
    return _table((*head, "violating trajectories", "violating tokens"), rows)


def _guarantees(_: str) -> str:
    rows = list(table())
    return _table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def _throughput(_: str) -> str:
    """Return what reading each artifact takes of a core, from the table of benchmarks/RESULTS.md."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("## Artifacts of the frameworks")
    section, _, _ = rest.partition("\n## ")
    rows: list[tuple[object, ...]] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "framework":
            speed = float(cells[3])
            rows.append((cells[0], cells[1], f"{speed:.1f}", f"{1e6 / speed / 3600:.0f}"))
    return _table(("framework", "artifact", "MB per second of a core", "core hours per TB"), rows)


GENERATORS: dict[str, Callable[[str], str]] = {
    "output": _output,
    "help": _help,
    "file": _file,
    "tables": _tables,
    "products": _products,
    "kinds": _kinds,
    "reported": _reported,
    "figures": _figures,
    "action": _action,
    "frameworks": _frameworks,
    "modes": _modes,
    "losses": _losses,
    "samples": _samples,
    "guarantees": _guarantees,
    "throughput": _throughput,
}


def generate(what: str) -> str:
    """Return the text that belongs between the markers of a part; ``KeyError`` for an unknown generator."""
    name, _, argument = what.partition(" ")
    return "\n" + GENERATORS[name](argument.strip()) + "\n"


def main() -> None:
    """Rewrite the files named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    for path in parser.parse_args().files or documents():
        before = path.read_text(encoding="utf-8")
        after = BLOCK.sub(lambda found: found[1] + generate(found["what"]) + found[4], before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path}: written anew")


if __name__ == "__main__":
    main()
