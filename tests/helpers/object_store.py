"""An object store on a loopback port: moto's S3, behind a door."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import DomainDispatcherApplication, create_backend_app

from helpers.door import Door, opened

_APP = DomainDispatcherApplication(create_backend_app)


class ObjectStore(Door):
    """The store."""

    def environment(self) -> dict[str, str]:
        """The variables through which it is reached."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "2",
        }

    def written(self) -> list[str]:
        """Parts of tables that were written."""
        return [request.path for request in self.requests if request.method == "PUT" and "/.parts/" in request.path]


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run a store."""
    door = ObjectStore(_APP)
    with opened(door):
        yield door
