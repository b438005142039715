"""A stand-in of Google Cloud Storage: as much of its JSON API as its clients ask for, with one bucket in memory.

https://cloud.google.com/storage/docs/json_api: objects are listed by prefix and delimiter, a page at a time, read in
ranges, written in one request of two parts or in a session of several, and deleted in batches.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.wrappers import Request, Response

from helpers.door import Door

BUCKET = "bucket"
PAGE = 4
"""Entries of a page of a listing: few, so that there are several pages."""


class GoogleStore(Door):
    """The store: ``objects`` by name."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.objects: dict[str, bytes] = {}
        self._sessions: dict[str, tuple[str, bytes]] = {}

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        return self._find(request)(environ, start)

    def _find(self, request: Request) -> Response:
        if request.path == "/batch/storage/v1":
            return self._batch(request)
        match = re.fullmatch(r"(?:/(upload|download))?/storage/v1/b/([^/]+)(?:/o(?:/(.+))?)?", request.path)
        if match is None or match[2] != BUCKET:
            return _missing("The specified bucket does not exist.")
        way, name = match[1], match[3]
        if way == "upload":
            return self._upload(request)
        if name is None:
            return self._list(request) if request.path.endswith("/o") else _json({"kind": "storage#bucket"})
        if name not in self.objects:
            return _missing(f"No such object: {BUCKET}/{name}")
        if request.method == "DELETE":
            del self.objects[name]
            return Response(status=204)
        if way == "download" or request.args.get("alt") == "media":
            return self._media(request, self.objects[name])
        return _json(self._resource(name))

    def _media(self, request: Request, data: bytes) -> Response:
        if request.range is None:
            return Response(data)
        (asked,) = request.range.ranges
        start, end = asked[0], min(asked[1] or len(data), len(data))
        if start >= len(data):
            return Response(status=416)
        return Response(data[start:end], 206, {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def _list(self, request: Request) -> Response:
        prefix, delimiter = request.args.get("prefix", ""), request.args.get("delimiter")
        entries = {}
        for name in sorted(self.objects):
            if name.startswith(prefix):
                below = name[len(prefix) :]
                folder = bool(delimiter) and delimiter in below
                entries[prefix + below.split("/")[0] + "/" if folder else name] = folder
        first = int(request.args.get("pageToken", 0))
        page = list(entries)[first : first + PAGE]
        found: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [self._resource(name) for name in page if not entries[name]],
            "prefixes": [name for name in page if entries[name]],
        }
        if first + PAGE < len(entries):
            found["nextPageToken"] = str(first + PAGE)
        return _json(found)

    def _upload(self, request: Request) -> Response:
        kind = request.args["uploadType"]
        if kind == "multipart":
            edge = b"--" + str(request.mimetype_params["boundary"]).encode()
            _, about, content, _ = request.get_data().split(edge)
            name = json.loads(about.split(b"\n\n", 1)[1].replace(b"\r", b""))["name"]
            self.objects[name] = content.split(b"\n\n", 1)[1].removesuffix(b"\n")
            return _json(self._resource(name))
        session = request.args.get("upload_id")
        if session is None:
            session = str(len(self._sessions))
            self._sessions[session] = str(request.args.get("name") or request.get_json()["name"]), b""
            where = f"{self.url}/upload/storage/v1/b/{BUCKET}/o?uploadType=resumable&upload_id={session}"
            return Response(headers={"Location": where})
        name, data = self._sessions[session]
        data += request.get_data()
        self._sessions[session] = name, data
        if request.headers["Content-Range"].endswith("/*"):
            return Response(status=308, headers={"Range": f"bytes=0-{len(data) - 1}"})
        self.objects[name] = data
        return _json(self._resource(name))

    def _batch(self, request: Request) -> Response:
        names = re.findall(rb"DELETE /storage/v1/b/[^/]+/o/(\S+?)(?:\?\S*)? HTTP", request.get_data())
        parts = []
        for name in names:
            found = self.objects.pop(_unquoted(name), None) is not None
            parts.append(f"--batch\nContent-Type: application/http\n\nHTTP/1.1 {204 if found else 404} \n\n")
        return Response("".join(parts) + "--batch--", content_type="multipart/mixed; boundary=batch")

    def _resource(self, name: str) -> dict[str, Any]:
        data = self.objects[name]
        digest = hashlib.md5(data).digest()
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": BUCKET,
            "size": str(len(data)),
            "md5Hash": base64.b64encode(digest).decode(),
            "etag": digest.hex(),
            "updated": "2026-11-30T12:00:00.000Z",
            "timeCreated": "2026-11-30T12:00:00.000Z",
        }


def _unquoted(name: bytes) -> str:
    from urllib.parse import unquote

    return unquote(name.decode())


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(value), status, content_type="application/json")


def _missing(message: str) -> Response:
    return _json({"error": {"code": 404, "message": message}}, 404)
