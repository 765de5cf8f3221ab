"""Who names a model that was never paid for is refused before the ledger opens an account."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.fleet.run import run_fleet
from dp_powerflow.pipeline.release import run_release
from dp_powerflow.privacy.ledger.book import Ledger
from support.fleet_small import circuit, fleet_config
from support.here import Here
from support.small import small_config


def test_a_release_that_names_no_model_of_its_customers_opens_no_account(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="were never charged for"):
        run_release(small_config(tmp_path, model={"reuse": "never"}), workers=1)
    assert Ledger.inspect(tmp_path / "state").summary().accounts == ()


def test_nor_does_a_fleet(tmp_path: Path) -> None:
    (tmp_path / "feeders").mkdir()
    (tmp_path / "feeders" / "alder.dss").write_text(circuit(1.0))
    config = fleet_config(tmp_path, fleet={"same_frame": None}, model={"reuse": "never"})
    with pytest.raises(PrivacyError, match="were never charged for"):
        run_fleet(config, engine=Here())
    assert Ledger.inspect(tmp_path / "state").summary().accounts == ()
