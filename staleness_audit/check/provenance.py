"""What an audit was made from: digests of the files that were read, so that it can be derived again."""

from __future__ import annotations

import hashlib
from typing import Any

from staleness_audit.rebuild import Rebuilt

MOST_LISTED = 1000
"""Files up to which each is listed; a run of more has the digest over all of them."""


def inputs(rebuilt: Rebuilt) -> dict[str, Any] | None:
    """Return the block ``inputs`` of the document; None if the tables do not say what they were made from.

    Of a file that a URL names, the digest is that of its listing (``object:``), so that it need not be fetched again.
    ``of``: what the digests are of, ``bytes`` or a ``listing``. ``digest``: SHA-256 over ``<path> <its digest>`` of
    every file, a line each, in the order of their paths.
    """
    rows = rebuilt.dataset.scan("sources").select("path", "bytes", "digest").sort("path").collect().to_dicts()
    if not rows or any(row["digest"] is None for row in rows):
        return None
    lines = "".join(f"{row['path']} {row['digest']}\n" for row in rows)
    return {
        "files": len(rows),
        "bytes": sum(row["bytes"] for row in rows),
        "of": "listing" if any(row["digest"].startswith("object:") for row in rows) else "bytes",
        "digest": f"sha256:{hashlib.sha256(lines.encode(errors='surrogatepass')).hexdigest()}",
        "listed": rows if len(rows) <= MOST_LISTED else None,
    }
