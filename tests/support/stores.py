"""S3-compatible object stores for the tests, each a server of moto in a process of its own."""

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

import pytest

MISSING = not (find_spec("moto") and find_spec("s3fs"))
_BUCKET = "bucket"
_SERVER = """\
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
NOT_STRUCK = ("LD_PRELOAD", "FAULTS_PLAN")
"""Variables by which `support.faults` strikes at processes."""


@dataclass(frozen=True)
class Store:
    """A bucket; a process that forks calls its methods in a child, since its client has threads."""

    url: str = f"s3://{_BUCKET}"

    def files(self) -> dict[str, str]:
        """SHA-256 of every object."""
        store = _client()
        names = store.find(_BUCKET)
        found = {name: hashlib.sha256(store.cat_file(name)).hexdigest() for name in names}
        return {f"store/{name.partition('/')[2]}": digest for name, digest in found.items()}

    def clear(self) -> None:
        """Remove every object."""
        store = _client()
        if not store.exists(_BUCKET):
            store.mkdir(_BUCKET)
        for name in store.find(_BUCKET):
            store.rm_file(name)


def _client() -> Any:
    import s3fs  # type: ignore[import-untyped,unused-ignore]

    return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


@contextmanager
def served() -> Iterator[Store]:
    """A store, known to this process and its children; its bucket is made when it is cleared first."""
    environment = {key: value for key, value in os.environ.items() if key not in NOT_STRUCK}
    command = [sys.executable, "-c", _SERVER]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with (
        subprocess.Popen(command, env=environment, text=True, stderr=subprocess.DEVNULL, **pipes) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        # The server asks for some credentials and believes any.
        for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test")):
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        yield Store()
        server.communicate("")


@contextmanager
def s3_server() -> Iterator[str]:
    """The URL of an empty bucket; the test is skipped where moto or s3fs is missing."""
    s3fs = pytest.importorskip("s3fs", reason="pip install 's3fs' 'moto[server]'")
    pytest.importorskip("moto.server", reason="pip install 's3fs' 'moto[server]'")
    with served() as store:
        s3fs.S3FileSystem.clear_instance_cache()
        store.clear()
        yield store.url
        s3fs.S3FileSystem.clear_instance_cache()
