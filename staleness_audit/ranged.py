"""A file system for readers of Parquet, who know which ranges they want: around another one of fsspec's.

It is for parts of tables, which never change under their name: what is known of one is asked for once.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

from fsspec import AbstractFileSystem

AHEAD_BYTES = 256 << 10
"""What is fetched beyond each range that is asked for: small columns lie side by side. Smaller parts are kept whole."""
KEPT = 256


class RangedFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Passes everything on, but opens files for reading without fetching far ahead."""

    cachable = False

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.protocol = inner.protocol
        self._info: dict[str, Any] = {}
        self._small = lru_cache(KEPT)(inner.cat_file)

    def _strip_protocol(self, path: Any) -> Any:
        return self.inner._strip_protocol(path)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """Open a file."""
        name = self._strip_protocol(path)
        if "r" not in mode:
            return self.inner.open(path, mode, **options)
        if self.info(name)["size"] <= AHEAD_BYTES:
            return io.BytesIO(self._small(name))
        return self.inner.open(name, mode, block_size=AHEAD_BYTES, cache_type="readahead")

    def info(self, path: str, **options: Any) -> Any:
        """See fsspec."""
        name = self._strip_protocol(path)
        if name not in self._info:
            self._info[name] = self.inner.info(name, **options)
        return self._info[name]

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        """See fsspec."""
        return self.inner.ls(path, detail=detail, **options)

    def modified(self, path: str) -> Any:
        """See fsspec."""
        return self.info(path).get("LastModified") or self.inner.modified(path)
