"""A release whose power flow OpenDSS solves: the same voltages as of the batched solver, and said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.errors import PowerFlowError
from dp_powerflow.manifest.verify import verify_release
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.run import run_release
from support.pandapower_nets import quiet, small_net
from support.small import small_config
from support.tampering import manifest_of

TWIN: dict[str, Any] = {
    **{"mode": "twin-network", "epsilon": 8.0, "id": "t1", "change": 0.05},
    **{"released": "all", "controls": "frozen", "publish": "network and loads", "graph_days": 1},
}


@pytest.mark.parametrize("network", [{}, TWIN], ids=["true network", "twin"])
def test_opendss_and_batch_release_the_same_voltages(tmp_path: Path, network: dict[str, Any]) -> None:
    released = {}
    for solver in ("batch", "opendss"):
        release = {"days": 2, "solver": solver}
        config = small_config(tmp_path / solver, release=release, network=network)
        path = Path(str(run_release(config, workers=1).path))
        assert verify_release(path).verdict == "demonstration"
        assert ("OpenDSS" in manifest_of(path)["processing"]["solver"]) == (solver == "opendss")
        released[solver] = open_corpus(path).voltages()
    one, other = released.values()
    # One step of the public grid: a figure near the middle between two steps may go either way.
    assert np.max(np.abs(np.abs(one) - np.abs(other))) < 1.5e-6
    assert np.max(np.abs(np.angle(one / other, deg=True))) < 2.5e-5


def test_the_solver_is_part_of_the_request(tmp_path: Path) -> None:
    asked = [small_config(tmp_path, release={"solver": solver}) for solver in ("batch", "opendss")]
    assert len({plan(config).plan.request_sha256 for config in asked}) == 2


def test_a_feeder_that_opendss_did_not_read_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with quiet() as pp:
        pp.to_json(small_net(), str(tmp_path / "net.json"))
    config = small_config(tmp_path, feeder={"source": "net.json"}, release={"solver": "opendss"})
    with pytest.raises(PowerFlowError, match="was not read from OpenDSS"):
        run_release(config, workers=1)
    assert not (tmp_path / "state" / "ledger.sqlite").exists()
