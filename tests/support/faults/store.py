"""An object store in a process of its own, which nobody strikes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from support.faults.shim import PLAN

_BUCKET = "bucket"
_SERVER = """\
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Store:
    """A bucket; call its methods in a child, since its client has threads."""

    url: str

    def files(self) -> dict[str, str]:
        """SHA-256 of every object."""
        store = self._client()
        found = store.find(_BUCKET)
        return {
            f"store/{name.partition('/')[2]}": hashlib.sha256(store.cat_file(name)).hexdigest()
            for name in found
        }

    def clear(self) -> None:
        """Remove every object."""
        store = self._client()
        if not store.exists(_BUCKET):
            store.mkdir(_BUCKET)
        for name in store.find(_BUCKET):
            store.rm_file(name)

    def _client(self) -> Any:
        import s3fs  # type: ignore[import-untyped,unused-ignore]

        return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


@contextmanager
def served(wanted: bool) -> Iterator[Store | None]:
    """A store for the time of the context; None if none is wanted, or moto and s3fs are not installed."""
    if not wanted or find_spec("moto") is None or find_spec("s3fs") is None:
        yield None
        return
    environment = {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", PLAN)}
    command = [sys.executable, "-c", _SERVER]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen(command, env=environment, text=True, stderr=subprocess.DEVNULL, **pipes) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        # The server asks for some credentials and believes any.
        os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        yield Store(f"s3://{_BUCKET}")
        server.communicate("")
