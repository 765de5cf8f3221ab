"""Feeders kept in the private state: the same bits, never of another file, never of somebody else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dp_powerflow.errors import PrivacyError
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.pandapower.reader import read_pandapower
from dp_powerflow.grid.sources import LoadTable, Rebuilder
from dp_powerflow.pipeline import parsed
from dp_powerflow.pipeline.inputs import frame_chunks, network_chunks
from dp_powerflow.pipeline.parsed import FeederOptions, parsed_feeder, remove_oldest
from support.fleet_small import circuit
from support.pandapower_nets import quiet, small_net

PLAIN = FeederOptions()


@pytest.fixture
def net(tmp_path: Path) -> str:
    path = tmp_path / "small.json"
    with quiet() as pandapower:
        pandapower.to_json(small_net(), str(path))
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "parsed"


def _bytes(feeder: Feeder) -> bytes:
    """What identifies a feeder, and a twin that is made of it."""
    source = Rebuilder(feeder)
    twin = source.build({key: 1.1 * level for key, level in source.parameters().levels.items()})
    facts = repr((feeder.loads, feeder.pv, feeder.taps, feeder.notes, feeder.name)).encode()
    return b"".join([*network_chunks(feeder), *frame_chunks(feeder), *network_chunks(twin), facts])


def test_a_kept_feeder_has_the_bits_of_the_file_and_the_file_is_not_read_again(
    net: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = parsed_feeder(net, PLAIN, folder)
    monkeypatch.setattr(parsed, "open_feeder", lambda *_, **__: pytest.fail("read again"))
    kept = parsed_feeder(net, PLAIN, folder)
    assert _bytes(kept) == _bytes(read)
    (file,) = folder.iterdir()
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)


def test_another_file_option_or_version_is_another_feeder(
    net: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_feeder(net, PLAIN, folder)
    assert parsed_feeder(net, FeederOptions(base_mva=2.0), folder).base_mva == 6.0
    loads = LoadTable({"mill": (100.0, 10.0), "homes": (50.0, 5.0)})
    assert parsed_feeder(net, FeederOptions(loads=loads), folder).loads[0].kw == 100.0
    with quiet() as pandapower:
        pandapower.to_json(small_net(own=2.0), net)
    assert np.any(parsed_feeder(net, PLAIN, folder).y.data != parsed_feeder(net, PLAIN, None).y.data) == 0
    before = len(list(folder.iterdir()))
    assert before == 4
    monkeypatch.setattr(parsed, "_FORMAT", "another")
    parsed_feeder(net, PLAIN, folder)
    assert len(list(folder.iterdir())) == before + 1


def test_what_others_could_have_put_there_is_not_loaded(net: str, folder: Path, tmp_path: Path) -> None:
    parsed_feeder(net, PLAIN, folder)
    (file,) = folder.iterdir()
    file.chmod(0o644)
    with pytest.raises(PrivacyError, match="chmod 600"):
        parsed_feeder(net, PLAIN, folder)
    elsewhere = file.rename(tmp_path / "elsewhere")
    elsewhere.chmod(0o600)
    file.symlink_to(elsewhere)
    with pytest.raises(PrivacyError, match="check its owner and mode"):
        parsed_feeder(net, PLAIN, folder)
    file.unlink()
    folder.chmod(0o755)
    with pytest.raises(PrivacyError, match="chmod 700"):
        parsed_feeder(net, PLAIN, folder)


def test_a_damaged_file_is_read_again_and_replaced(net: str, folder: Path) -> None:
    read = parsed_feeder(net, PLAIN, folder)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-1], b"", bytes(len(whole))):
        file.write_bytes(damaged)
        assert _bytes(parsed_feeder(net, PLAIN, folder)) == _bytes(read)
        assert len(file.read_bytes()) == len(whole)


def test_scripts_and_nets_that_name_other_files_are_not_kept(net: str, folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "small.dss"
    script.write_text(circuit(1.0))
    parsed_feeder(str(script), PLAIN, folder)
    saved = json.loads(Path(net).read_text())
    saved["_object"]["remark"] = "/elsewhere/table.json"
    Path(net).write_text(json.dumps(saved))
    parsed_feeder(net, PLAIN, folder)
    assert not folder.exists()


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(bytes(100))
        os.utime(path, ns=(number, number))
    os.utime(tmp_path / "0.bin", ns=(9, 9))
    remove_oldest(tmp_path, 300)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.bin", "3.bin", "4.bin"]


def test_a_saved_net_is_the_net_without_what_is_left_out_of_its_file(net: str) -> None:
    saved = json.loads(Path(net).read_text())
    saved["_object"]["profiles"] = {"load": saved["_object"]["load"]}
    Path(net).write_text(json.dumps(saved))
    assert _bytes(parsed_feeder(net, PLAIN, None)) == _bytes(read_pandapower(small_net(), name="small"))
