"""Coverage-guided fuzzing with Atheris: ``python tests/fuzz [--seconds N] [TARGET ...]`` (default: all, in turn).

What it finds is written to ``fuzz-findings/``, once for each place: mend what it shows, and put a small input of a
reader into ``tests/fuzz/corpus/<target>/``, the change that a parser met into ``test_found.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
FINDINGS = Path("fuzz-findings")
MEMORY = Path("/dev/shm")
MOST_BYTES = 60_000
MOST_SECONDS = 20
MOST_MEMORY = 2 << 30


def fuzz(target: str, flags: list[str]) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris

    sys.path.insert(0, str(HERE.parent))
    with atheris.instrument_imports(include=["staleness_audit", "staleness_parsers", "yaml"]):
        from fuzz.targets import HEAD, TARGETS
    from fuzz.mutate import mutate

    leading = HEAD if target.startswith("parser-") else 0

    def changed(data: bytes, most: int, seed: int) -> bytes:
        return mutate(bytes(data), most, seed, atheris.Mutate, leading=leading)

    atheris.Setup([sys.argv[0], *flags], going_on(target, TARGETS[target]), custom_mutator=changed)
    atheris.Fuzz()


def going_on(name: str, target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a target that writes down the first input of each kind of error, and lets the fuzzer go on.

    Errors are of a kind that are raised at one line of the package, or break the same promises.
    """
    seen: set[str] = set()

    def kept(data: bytes) -> None:
        try:
            with bounded():
                target(data)
        except Exception as error:
            kind = kind_of(error)
            if kind in seen:
                return
            seen.add(kind)
            place = FINDINGS / f"{name}-{hashlib.sha256(kind.encode()).hexdigest()[:12]}"
            if place.exists():
                return
            place.write_bytes(data)
            told = "".join(traceback.format_exception(error))
            place.with_suffix(".txt").write_text(f"{kind}\n\n{told}", errors="backslashreplace")

    return kept


class TooSlow(Exception):
    """Not a ``TimeoutError``, which is an ``OSError``: readers would take it for one of the disk."""


@contextmanager
def bounded() -> Iterator[None]:
    """Make what takes too much time of a processor, or too much memory beyond that of now, an exception."""

    def late(*_: object) -> None:
        raise TooSlow(f"more than {MOST_SECONDS} s of a processor")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def kind_of(error: Exception) -> str:
    """Where an error was raised, as far as the package goes, and what it was, without its numbers."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "staleness_" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "promise"
    return f"{where} {type(error).__name__}: {re.sub(r'[0-9]+', '0', str(error)[:120]) if not frames else ''}"


def main() -> int:
    """Fuzz each target for its share of the time; 1 if one of them found something."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("targets", nargs="*")
    options.add_argument("--seconds", type=int, default=60, help="for each target")
    given = options.parse_args()
    sys.path.insert(0, str(HERE.parent))
    from fuzz.targets import TARGETS, seeds

    failed = []
    for name in given.targets or TARGETS:
        kept, genuine = FINDINGS / "corpus" / name, FINDINGS / "genuine" / name
        for folder in (kept, genuine):
            folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds(name)):
            (genuine / str(number)).write_bytes(seed)
        folders = [str(folder.resolve()) for folder in (kept, HERE / "corpus" / name, genuine) if folder.is_dir()]
        # Each input's own limit counts time of a processor (targets.py); this one is for what never comes back.
        flags = [f"-max_total_time={given.seconds}", "-timeout=600", "-rss_limit_mb=6000", "-print_final_stats=1"]
        flags += ["-report_slow_units=100"]
        flags += [f"-artifact_prefix={FINDINGS.resolve()}/{name}-", f"-max_len={MOST_BYTES}", *folders]
        command = [sys.executable, str(Path(__file__)), "--inside", name, *flags]
        # A process that found something ends without cleaning up; one thread is what small inputs are read fastest by.
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
            around = {**os.environ, "TMPDIR": scratch, "STALENESS_AUDIT_THREADS": "1", "POLARS_MAX_THREADS": "1"}
            done = subprocess.run(command, env=around, capture_output=True, text=True, errors="replace", check=False)
        (FINDINGS / f"{name}.log").write_text(done.stderr + done.stdout)
        told = re.findall(r"number_of_executed_units: (\d+)|^#(\d+)\t", done.stderr, re.MULTILINE)
        count = max((int(one or other) for one, other in told), default=0)
        reached = re.findall(r" cov: (\d+)", done.stderr)
        print(
            f"{name}: {count} executions, {reached[-1] if reached else '?'} edges reached, exit code {done.returncode}",
            flush=True,
        )
        found = sorted(path.name for path in FINDINGS.glob(f"{name}-*.txt"))
        if found:
            print(f"  {FINDINGS}: {', '.join(found)}", flush=True)
        if done.returncode or found:
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())
