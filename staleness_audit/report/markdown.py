"""Markdown for a job summary or a comment on a pull request.

The first line is a comment that nobody sees and that is the same whenever the same runs are audited: whoever posts the
text looks for it and updates that comment instead of adding another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from staleness_audit.report.findings import WORDS, Data, file_of, run_name, violation_story
from staleness_audit.report.terminal.conditions import condition_outcome, condition_words
from staleness_audit.report.terminal.cost import REASONS
from staleness_audit.report.terminal.verdict import bound_line, headline, promise_lines, violation_lines, why
from staleness_audit.report.terminal.words import class_size, percent, percent_interval, place, step_number

MOST_CHARACTERS = 60_000
"""A comment may hold 65,536."""
MOST_DETAILED = 10
MOST_ROWS = 10
SIGNS = {"pass": "✅", "fail": "❌", "inconclusive": "❔", "no-bound": "➖"}
_PLAIN = re.compile(r"[^\w .,;'!?/()=+%–→≥≤…-]|_")


def markdown(documents: Sequence[Data], unreadable: Sequence[tuple[str, str]], base: Path) -> str:
    """Return the text. Runs beyond the first ten have only their line in the table.

    ``unreadable``: runs that could not be audited, each with the reason.
    """
    names = [*(run_name(data, base) for data in documents), *(name for name, _ in unreadable)]
    parts = [marker(names), "## Staleness audit", *_head(documents, unreadable, base)]
    for data in documents[:MOST_DETAILED]:
        details = "\n\n".join(_details(data, base, alone=len(names) == 1))
        if sum(map(len, parts)) + len(details) > MOST_CHARACTERS:
            parts.append("More would not fit into a comment; the other reports hold it.")
            break
        parts.append(details)
    return "\n\n".join(parts) + "\n"


def marker(names: Iterable[str]) -> str:
    """Return the comment that tells this report from others: it depends on the names of the runs only."""
    digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"<!-- staleness-audit: {digest} -->"


def escape(text: object, limit: int = 300) -> str:
    """Text that is shown as it is: no markup, no HTML, no link, no mention, no reference, one line.

    Everything that could be punctuation is written as a character reference, which Markdown takes for text.
    """
    shown = WORDS.plain(text, limit)
    shown = _PLAIN.sub(lambda found: f"&#{ord(found[0])};", shown)
    # What links without punctuation of its own is broken by a space without width.
    return re.sub(r"(&#64;|&#35;|&#58;(?=//)|www(?=\.)|(?<![\w])GH(?=-\d))", r"\1&#8203;", shown, flags=re.IGNORECASE)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells must be escaped already. A head that ends in a colon is of numbers."""
    lines = [[title.removesuffix(":") for title in head], ["--:" if title.endswith(":") else "---" for title in head]]
    return "\n".join("| " + " | ".join(line) + " |" for line in [*lines, *rows])


def _head(documents: Sequence[Data], unreadable: Sequence[tuple[str, str]], base: Path) -> Iterator[str]:
    if len(documents) == 1 and not unreadable:
        return
    rows = [_row(data, base) for data in documents]
    rows += [["⚠️ unreadable", escape(name), "", "", "", "", "2"] for name, _ in unreadable]
    yield table(("verdict", "run", "framework", "bound:", "largest:", "violations:", "exit code:"), rows)
    if unreadable:
        yield "\n".join(f"- {escape(reason, 500)}" for _, reason in unreadable)


def _row(data: Data, base: Path) -> list[str]:
    bound, violations = data["bound"]["value"], data["violations"][data["gate"]["count"]]
    return [
        f"{SIGNS[data['verdict']]} {headline(data)}",
        escape(run_name(data, base)),
        escape(data["run"]["framework"]),
        "none" if bound is None else str(bound),
        escape(WORDS.interval(data["staleness"]["max"])),
        "not judged" if violations is None else escape(WORDS.interval(violations)),
        str(data["gate"]["exit"]),
    ]


def _details(data: Data, base: Path, *, alone: bool) -> Iterator[str]:
    title = f"{SIGNS[data['verdict']]} {headline(data)}: {escape(run_name(data, base))}"
    yield f"### {title}"
    yield f"**{escape(why(data, WORDS), 600)}**"
    yield table(("", ""), [[f"**{name}**", escape(value, 900)] for name, value in _facts(data) if value])
    if conditions := [row for row in data["gate"]["conditions"] if row["kind"] == "fail-if" or row["since_baseline"]]:
        yield table(("fails if", "outcome", "what is known"), map(_condition, conditions))
    if worst := (data["violations"]["worst"] or [])[:MOST_ROWS]:
        yield _worst(data, worst, base)
    if items := [item for item in data["diagnostics"]["items"] if item["severity"] != "note"]:
        yield _diagnostics(items)


def _facts(data: Data) -> Iterator[tuple[str, str]]:
    yield "framework", f"{data['run']['framework']} {data['run']['framework_version'] or ''}".strip()
    yield "bound", bound_line(data, WORDS)
    unit = data["staleness"]["unit"]
    yield "largest staleness", f"{WORDS.interval(data['staleness']['max'])} (versions count {unit})"
    if data["bound"]["value"] is not None:
        proven, possible = violation_lines(data, WORDS)
        yield "proven violations", proven
        yield "possible violations", possible
    yield "guarantee", ": ".join(promise_lines(data, WORDS))
    coverage = data["coverage"]
    if coverage["tokens_exact"] is not None:
        yield "evidence", f"staleness of {percent(coverage['tokens_exact'])} of the trained tokens is known exactly"
    yield "wasted", _wasted(data)
    throughput = data["throughput"]
    if throughput["trained_tokens_per_s"] is not None:
        yield "throughput", f"{WORDS.interval(_exact(throughput['trained_tokens_per_s']))} trained tokens per second"
    gate = data["gate"]
    if gate["baseline"]:
        found = "" if gate["baseline"]["found"] else " (it holds no audit of this run, so everything counts)"
        yield "baseline", gate["baseline"]["file"] + found
    yield "exit code", str(gate["exit"])


def _exact(value: float) -> Mapping[str, float]:
    return {"lo": value, "hi": value}


def _wasted(data: Data) -> str:
    shown = percent_interval(data["waste"]["ratio"])
    if shown == "unknown":
        return ""
    reasons = {
        REASONS.get(reason, reason): value
        for kind in ("dropped", "cancelled", "lost")
        for reason, value in data["tokens"][kind].items()
        if value["lo"]
    }
    split = ", ".join(f"{WORDS.plain(reason, 60)} {WORDS.interval(value)}" for reason, value in reasons.items())
    return f"{shown} of the generated tokens were never trained on" + (f" (tokens: {split})" if split else "")


def _condition(row: Mapping[str, Any]) -> list[str]:
    sign = {"yes": SIGNS["fail"], "no": SIGNS["pass"], "unknown": SIGNS["inconclusive"]}[row["fails"]]
    known = condition_words(row, WORDS)
    return [escape(row["condition"]), f"{sign} {escape(condition_outcome(row))}", escape(known, 600)]


def _worst(data: Data, worst: Sequence[Mapping[str, Any]], base: Path) -> str:
    rows = []
    for row in worst:
        first = row["evidence"][0] if row["evidence"] else {}
        source = first.get("source")
        named = {**first, "source": file_of(data, source, base)} if source else first
        mark = "" if row.get("proven", True) else " (possible)"
        rows.append(
            [
                escape(row["trajectory_id"], 80)
                + (f" ({size})" if (size := class_size(row.get("multiplicity"))) else ""),
                step_number(row),
                escape(WORDS.interval(row["staleness"])) + mark,
                escape(WORDS.interval(row["in_flight"])),
                escape(WORDS.interval(row["in_queue"])),
                escape(WORDS.interval(row["tokens"])),
                " ".join(row["stoppable_at"]),
                escape(place(named)),
            ]
        )
    head = ("trajectory", "step:", "staleness:", "in flight:", "in queue:", "tokens beyond:", "stop at", "log line")
    story = escape(violation_story(worst[0], data["bound"]["value"]), 900)
    return _folded("Worst violations", f"{table(head, rows)}\n\n{story}")


def _diagnostics(items: Sequence[Mapping[str, Any]]) -> str:
    rows = [[item["severity"], escape(place(item)), escape(item["message"], 500)] for item in items[:MOST_ROWS]]
    more = f"\n\n{len(items) - MOST_ROWS} more." if len(items) > MOST_ROWS else ""
    title = f"What could not be read, or contradicts itself ({len(items)})"
    return _folded(title, table(("severity", "where", "what"), rows) + more)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
