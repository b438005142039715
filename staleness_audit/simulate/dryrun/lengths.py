"""DryRun-RL's workloads: lists of lengths that are used in turn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


def lengths(name: str, *, n: int = 200, seed: int = 42, **values: float) -> list[int]:
    """Return ``n`` response lengths.

    Args:
        name: ``uniform`` (``lo``, ``hi``), ``bimodal`` (``short_len``, ``long_len``, ``long_frac``), ``lognormal``
            (``mu``, ``sigma``), ``powerlaw`` (``alpha``, ``lo``, ``hi``) or ``fixed`` (``lo``).
        n: how many.
        seed: of Python's generator.
        values: parameters of the family.

    Raises:
        KeyError: no such family, or a parameter is missing.
    """
    return FAMILIES[name](Random(seed), n, values)  # noqa: S311 - to be repeated, not to be secret


def _uniform(chance: Random, n: int, values: dict[str, float]) -> list[int]:
    return [chance.randint(int(values["lo"]), int(values["hi"])) for _ in range(n)]


def _bimodal(chance: Random, n: int, values: dict[str, float]) -> list[int]:
    long = round(n * values["long_frac"])
    found = [int(values["long_len"])] * long + [int(values["short_len"])] * (n - long)
    chance.shuffle(found)
    return found


def _lognormal(chance: Random, n: int, values: dict[str, float]) -> list[int]:
    return [max(1, int(chance.lognormvariate(values["mu"], values["sigma"]))) for _ in range(n)]


def _powerlaw(chance: Random, n: int, values: dict[str, float]) -> list[int]:
    low, high, power = values["lo"], values["hi"], -1.0 / values["alpha"]
    return [int(min(max(int(low * (1 - chance.random()) ** power), low), high)) for _ in range(n)]


def _fixed(chance: Random, n: int, values: dict[str, float]) -> list[int]:
    return [int(values["lo"])] * n


FAMILIES: dict[str, Callable[[Random, int, dict[str, float]], list[int]]] = {
    "uniform": _uniform,
    "bimodal": _bimodal,
    "lognormal": _lognormal,
    "powerlaw": _powerlaw,
    "fixed": _fixed,
}
