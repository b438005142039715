"""What a watch and an audit must agree on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def figures(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without ``health``, which is ``running`` only in a watch, and the stories, which an audit tells."""
    same = json.loads(json.dumps(document, default=str))
    del same["violations"]["worst"], same["run"]["health"]
    # Which bytes were read, and with which options: what `verify` needs of an audit.
    return {key: value for key, value in same.items() if key not in ("inputs", "options")}
