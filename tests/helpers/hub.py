"""A stand-in of Hugging Face's hub: as much of its API as reading a repository of data sets asks for.

https://huggingface.co/docs/hub/api: folders are listed a page at a time, paths are looked up, files are read in ranges.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.wrappers import Request, Response

from helpers.door import Door

REPOSITORY = "me/logs"
COMMIT = "c" * 40
PAGE = 4


class Hub(Door):
    """The hub, with one repository: ``objects`` by path."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.objects: dict[str, bytes] = {}

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        return self._find(Request(environ))(environ, start)

    def _find(self, request: Request) -> Response:
        if match := re.fullmatch(rf"/datasets/{REPOSITORY}/resolve/[^/]+/(.+)", request.path):
            return self._file(request, match[1]) if match[1] in self.objects else _error(404, "EntryNotFound")
        match = re.fullmatch(rf"/api/datasets/{REPOSITORY}(?:/(revision|tree|paths-info)/[^/]+/?(.*))?", request.path)
        if match is None:
            return _error(401, "RepoNotFound")  # whether it is private or missing is nobody's business
        if match[1] == "paths-info":
            paths = request.get_json()["paths"] if request.is_json else request.form.getlist("paths")
            return _json([self._entry(path) for path in paths if path in self._all()])
        if match[1] == "tree":
            return self._tree(request, match[2])
        return _json({"id": REPOSITORY, "sha": COMMIT, "private": False, "siblings": [], "tags": []})

    def _all(self) -> set[str]:
        folders = {
            "/".join(name.split("/")[:depth]) for name in self.objects for depth in range(1, name.count("/") + 1)
        }
        return {*self.objects, *folders}

    def _entry(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            return {"type": "directory", "path": path, "size": 0, "oid": "f" * 40}
        data = self.objects[path]
        return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def _tree(self, request: Request, folder: str) -> Response:
        start = f"{folder}/" if folder else ""
        below = sorted(path for path in self._all() if path.startswith(start))
        if request.args.get("recursive", "").lower() not in ("1", "true"):
            below = [path for path in below if "/" not in path[len(start) :]]
        if not below:
            return _error(404, "EntryNotFound")
        first = int(request.args.get("cursor", 0))
        answer = _json([self._entry(path) for path in below[first : first + PAGE]])
        if first + PAGE < len(below):
            again = "&".join([f"recursive={request.args.get('recursive', 'false')}", f"cursor={first + PAGE}"])
            answer.headers["Link"] = f'<{self.url}{request.path}?{again}>; rel="next"'
        return answer

    def _file(self, request: Request, path: str) -> Response:
        data = self.objects[path]
        about = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if request.range is None:
            return Response(data, headers=about)
        (asked,) = request.range.ranges
        start, end = asked[0], min(asked[1] or len(data), len(data))
        return Response(data[start:end], 206, {**about, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status, content_type="application/json")


def _error(status: int, code: str) -> Response:
    return Response(json.dumps({"error": code}), status, {"X-Error-Code": code}, content_type="application/json")
