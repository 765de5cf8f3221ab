"""Object stores for the tests: one in the memory of the process, and an S3-compatible server of moto."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

REASON = "moto[server] and s3fs are not installed: pip install 's3fs' 'moto[server]'"


@contextmanager
def s3_server() -> Iterator[str]:
    """An S3-compatible server with an empty bucket, known to this process and its children; its URL."""
    s3fs = pytest.importorskip("s3fs", reason=REASON)
    server_module = pytest.importorskip("moto.server", reason=REASON)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        # The server asks for some credentials and believes any.
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        s3fs.S3FileSystem.clear_instance_cache()
        # moto keeps the buckets of a process when a server stops, so a second one needs a new name.
        bucket = f"bucket-{secrets.token_hex(8)}"
        s3fs.S3FileSystem().mkdir(bucket)
        try:
            yield f"s3://{bucket}"
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            server.stop()
