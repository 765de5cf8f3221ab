"""The snippets of the page on clusters make clusters whose workers are fit for private data."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from dp_powerflow._parallel import DaskScheduler
from support.pages_that_run import blocks_of

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install dask distributed")


def snippet(word: str) -> str:
    """The only block of the page that mentions a word."""
    shown = blocks_of("how-to/fleet.md")
    (found,) = [block.text for block in shown if block.language == "python" and word in block.text]
    return found


@pytest.fixture
def certificates() -> Iterator[None]:
    """Certificates in the configuration of Dask, as the page asks for."""
    import dask

    security = distributed.Security.temporary()
    settings = {"ca-file": security.tls_ca_file}
    for role in ("scheduler", "worker", "client"):
        settings |= {f"{role}.cert": security.tls_client_cert, f"{role}.key": security.tls_client_key}
    with dask.config.set({f"distributed.comm.tls.{name}": value for name, value in settings.items()}):
        yield


def test_the_local_cluster_of_the_page_is_fit() -> None:
    names: dict[str, Any] = {}
    # Threads of this process, which start at once; they have no host.
    own = 'processes=False, dashboard_address="127.0.0.1:0", silence_logs=50'
    exec(snippet("LocalCluster(").replace('host="127.0.0.1"', own), names)
    with names["cluster"] as cluster:
        DaskScheduler(cluster.scheduler_address).check()


def test_the_slurm_jobs_of_the_page_start_workers_that_never_spill(
    certificates: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        jobqueue = pytest.importorskip("dask_jobqueue", reason="pip install dask-jobqueue")
    finally:
        signal.signal(signal.SIGINT, interrupted)  # which the import has replaced for the whole process
    scaled = []
    monkeypatch.setattr(jobqueue.SLURMCluster, "scale", lambda cluster, jobs: scaled.append(jobs))
    names: dict[str, Any] = {}
    exec(snippet("SLURMCluster("), names)
    with names["cluster"] as cluster:
        script = cluster.job_script()
    assert scaled[0] == 4  # and none when it is closed
    command = script.splitlines()[-1]
    assert "tls://" in command
    assert "--nthreads 1 " in command
    assert "--nworkers 8 " in command
    assert re.findall(r"--memory-limit (\S+)", command)[-1] == "0"  # the last one counts
    assert "#SBATCH --cpus-per-task=8" in script
