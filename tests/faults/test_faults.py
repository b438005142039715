"""Damaged logs: an audit of what is left never raises, never takes long, and never excludes what is true.

``faults/damage.py`` holds the kinds of damage, ``faults/judge.py`` the comparison with the truth, ``faults/untold.py``
what nothing can betray.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from helpers.cases import SAMPLES, cases

from faults.damage import BY_NAME, DAMAGES, Damage
from faults.judge import Case, Judgement, judge
from faults.untold import told

SEEDS = range(int(os.environ.get("STALENESS_AUDIT_THOROUGH", "0")) or 1)
"""Places at which each kind of damage strikes each case in the slow tests."""


def strike(case: Case, damage: Damage, seed: int) -> Judgement | None:
    """Inflict a damage at a place that the seed chooses, and judge; None where there is nothing to hit."""
    wound = damage.inflict(case.copy(), random.Random(f"{case.name} {damage.name} {seed}"))
    return None if wound is None else judge(case, damage, wound)


def wrongs(case: Case, damage: Damage, judgement: Judgement) -> list[str]:
    files = judgement.wound.files
    return [
        f"{damage.name} ({judgement.wound.text}): {error}"
        for error in told(case.folder.parent.name, damage.name, files, judgement.errors)
    ]


QUICK = {
    "events/straggler_bound1": ["cut_mid_line", "lose_line", "shuffle_records", "zero_page", "not_a_number"],
    "openrlhf/q1-normal": ["utf_16", "lose_step", "flip_bytes"],
    "skyrl/straggler_s1_tb": ["cut_binary", "emptied"],
}
"""A little of everything on small cases, for the default run."""


@pytest.mark.parametrize("name", QUICK)
def test_damage_of_every_sort_is_survived(name: str, tmp_path: Path) -> None:
    case = Case(SAMPLES / name, tmp_path)
    found = {damage: strike(case, BY_NAME[damage], 0) for damage in QUICK[name]}
    assert None not in found.values()
    assert [text for name, one in found.items() if one for text in wrongs(case, BY_NAME[name], one)] == []
    # The damage was such that the audit says something else: a harness that breaks nothing would prove nothing.
    assert {one.outcome for one in found.values() if one} - {"same"}


@pytest.mark.slow
@pytest.mark.parametrize("folder", cases(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_damage_makes_an_audit_exclude_what_is_true(folder: Path, tmp_path: Path) -> None:
    case = Case(folder, tmp_path)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for damage in DAMAGES:
        for seed in SEEDS:
            if (judgement := strike(case, damage, seed)) is not None:
                errors = wrongs(case, damage, judgement)
                outcomes["wrong" if errors else "untold" if judgement.errors else judgement.outcome] += 1
                wrong += errors
    print(f"faults {case.name}: {outcomes.total()} injected, {dict(sorted(outcomes.items()))}")
    assert wrong == []
    assert outcomes.total() > len(DAMAGES) // 8  # a lone packed event file takes the fewest
