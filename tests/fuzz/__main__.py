"""Coverage-guided fuzzing with Atheris: ``python tests/fuzz [--seconds N] [TARGET ...]`` (default: all, in turn).

What it finds is written to ``fuzz-findings/``: put a small input of it into ``tests/fuzz/corpus/<target>/``, where
``test_corpus.py`` reads it in every run of the tests, and mend what it shows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FINDINGS = Path("fuzz-findings")
MEMORY = Path("/dev/shm")


def fuzz(target: str, flags: list[str]) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["staleness_audit", "staleness_parsers", "yaml"]):
        from targets import TARGETS
    from mutate import mutate

    leading = int(target.startswith("parser-"))

    def changed(data: bytes, most: int, seed: int) -> bytes:
        return mutate(bytes(data), most, seed, atheris.Mutate, leading=leading)

    atheris.Setup([sys.argv[0], *flags], TARGETS[target], custom_mutator=changed)
    atheris.Fuzz()


def main() -> int:
    """Fuzz each target for its share of the time; 1 if one of them found something."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("targets", nargs="*")
    options.add_argument("--seconds", type=int, default=60, help="for each target")
    given = options.parse_args()
    from targets import TARGETS, seeds

    failed = []
    for name in given.targets or TARGETS:
        kept, genuine = FINDINGS / "corpus" / name, FINDINGS / "genuine" / name
        for folder in (kept, genuine):
            folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds(name)):
            (genuine / str(number)).write_bytes(seed)
        folders = [str(folder.resolve()) for folder in (kept, HERE / "corpus" / name, genuine) if folder.is_dir()]
        # Each input's own limit counts time of a processor (targets.py); this one is for what never comes back.
        flags = [f"-max_total_time={given.seconds}", "-timeout=600", "-rss_limit_mb=4096", "-print_final_stats=1"]
        flags += [f"-artifact_prefix={FINDINGS.resolve()}/{name}-", "-max_len=20000", *folders]
        command = [sys.executable, str(Path(__file__)), "--inside", name, *flags]
        # A process that found something ends without cleaning up; one thread is what small inputs are read fastest by.
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
            around = {**os.environ, "TMPDIR": scratch, "STALENESS_AUDIT_THREADS": "1", "POLARS_MAX_THREADS": "1"}
            done = subprocess.run(command, env=around, capture_output=True, text=True, errors="replace", check=False)
        (FINDINGS / f"{name}.log").write_text(done.stderr + done.stdout)
        count = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        reached = re.findall(r" cov: (\d+)", done.stderr)
        print(
            f"{name}: {count[1] if count else '?'} executions, {reached[-1] if reached else '?'} edges reached, "
            f"exit code {done.returncode}",
            flush=True,
        )
        if done.returncode:
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())
