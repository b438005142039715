"""One self-contained file: templates, styles, scripts and data are put together and sealed against everything outside.

The Content-Security-Policy allows no request at all and only the scripts that are named by their hash, so text from a
log that got past the escaping could still neither run nor call home.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from staleness_audit import __version__
from staleness_audit.report.html.figure import Figure


def assemble(context: Mapping[str, Any], figures: list[Figure], template: str = "report.html.j2") -> str:
    """Fill the page.

    Args:
        context: what the templates show; strings are escaped by them.
        figures: those among them that the page's script draws.
        template: the page's own part, which extends ``page.html.j2``.
    """
    scripts = {name: _asset(f"{name}.js") for name in ("theme", "report")} | {"plotly": _plotly()}
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts.values())
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _render(
        template,
        context,
        policy,
        scripts={name: Markup(text) for name, text in scripts.items()},  # noqa: S704 - our own files and Plotly's
        island=island({figure.id: figure.spec() for figure in figures}),
    )


def assemble_tables(template: str, context: Mapping[str, Any]) -> str:
    """Fill a page that has no figures, and so no scripts: its policy allows none."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return _render(template, context, policy)


def _render(template: str, context: Mapping[str, Any], policy: str, **more: Any) -> str:
    css = Markup(_asset("report.css"))  # noqa: S704 - our own file
    filled = _environment().get_template(template)
    return filled.render(**context, version=__version__, policy=policy, css=css, **more)


def island(value: object) -> Markup:
    """JSON that can stand inside a ``<script type="application/json">``: nothing in it ends or opens an element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - just made harmless


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("staleness_audit.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> str:
    text = (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")
    return _sealed(text.strip(), name)


@cache
def _plotly() -> str:
    """Plotly's own bundle, as its Python package brings it."""
    text = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    return _sealed(text, "plotly.min.js")


def _sealed(text: str, name: str) -> str:
    """Return it; a file that would end its own element must not be embedded."""
    for mark in ("</script", "</style", "<!--"):
        if mark in text.lower():
            raise ValueError(f"{name} contains {mark!r} and cannot stand in a page")
    return text


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
