"""What the doors need: valid files of every format, made by the program itself, each when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import dp_powerflow as dpf
from dp_powerflow import Ledger, PrivateState
from dp_powerflow.corpus.gridfm.tables import GridfmWriter
from dp_powerflow.corpus.schema import ExtrasLayout
from dp_powerflow.fleet.manifest import fleet_manifest, fleet_page, read_entries
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.manifest.model import DIGEST, canonical_json, digest_of
from dp_powerflow.pipeline.plan import keep_receipt
from support import manifest_releases as made_up
from support.corpora import ring
from support.fuzz.judging import Door
from support.small_circuits import REGULATOR, small_circuit
from support.tiny_feeder import two_lines

SECRET = "zq7canary"
"""Part of the names of customers: no message may hold it."""
SEED = 7
DAYS = ("2024-05-01", "2024-05-02", "2024-05-03")
STEP_MINUTES = 360
FLEET = "north"
EXTRAS = ExtrasLayout(
    loads=True, generation=True, source_phases=3, regulators=2, capacitors=2, scaled_down=True
)


class World:
    """Valid files below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.doors: dict[str, Door] = {}

    def folder(self, name: str) -> Path:
        """A folder of this name, made if it is not there."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @cached_property
    def release(self) -> made_up.Made:
        """A release on a twin, with all that is published beside the voltages."""
        chosen = made_up.twin_config(release={"network_epsilon_cap": 50.0})
        beside: dict[str, Any] = {"extras": EXTRAS, "connections": ring(made_up.LAYOUT.nodes), "seed": SEED}
        return made_up.make_release(self.folder("release"), chosen, _model(), earlier=1, **beside)

    @cached_property
    def true_release(self) -> made_up.Made:
        """A release on the true network."""
        return made_up.make_release(self.folder("true"), model=_model(), seed=SEED)

    @cached_property
    def fleet(self) -> Path:
        """The corpus of a fleet of two feeders."""
        place = self.folder("fleet") / "corpus"
        for name in ("feeder-0001", "feeder-0002"):
            own = {"id": f"{FLEET}_{name}"}
            chosen = made_up.twin_config(release={**own, "network_epsilon_cap": 50.0}, network=own)
            inputs, _ = made_up.make_inputs(self.folder(f"fleet/{name}"), chosen, _model(), seed=SEED)
            made_up.write_release(place / f"feeder={name}", inputs)
        entries = read_entries(place)
        page = fleet_page(FLEET, entries).to_html()
        (place / "fleet.html").write_bytes(page)
        manifest = fleet_manifest(FLEET, entries, sha256(page).hexdigest())
        manifest |= {DIGEST: digest_of(manifest)}
        (place / "fleet.json").write_bytes(canonical_json(manifest))
        return place

    @cached_property
    def state(self) -> Path:
        """A private state directory in which much has happened."""
        made = self.release
        state = PrivateState.open(made.state, insecure_seed=SEED)
        ledger = Ledger.open(state)
        for spend in ledger.spends():
            if spend.release_id == "r-1":
                keep_receipt(state, "r-1", spend)
        state.write_internal("r-1", "model.json", made.inputs.model.to_json().encode())
        register = {"alder": {"name": "feeder-0001", "charged under": ["r-1"]}}
        register |= {"b/irch": {"name": "f2", "charged under": []}}
        state.write_internal(FLEET, "feeders.json", json.dumps(register).encode())
        return made.state

    @cached_property
    def twin_record(self) -> bytes:
        """A twin that is kept."""
        key = dpf.StreamKey.from_insecure_seed(1)
        drawn = dpf.draw_twin(two_lines(), dpf.TwinDesign(epsilon=1.0, change=0.05), key=key)
        return drawn.record.to_json().encode()

    @cached_property
    def gridfm(self) -> Path:
        """Tables of a published twin."""
        feeder, directory = dpf.open_feeder("ieee13"), self.folder("gridfm") / "twin"
        nominal = (feeder.load_shares @ feeder.nominal_load)[feeder.retained]
        load = nominal * np.linspace(0.3, 1.0, 6)[:, None]
        v = np.empty((len(load), len(feeder.nodes)), dtype=np.complex128)
        v[:, feeder.energised], v[:, feeder.slack] = dpf.solve(feeder, load, all_nodes=True).v, feeder.v_slack
        order = np.arange(len(feeder.nodes), dtype=np.int64)
        writer = GridfmWriter(directory, feeder, order, released=len(order) // 2)
        writer.write_block(0, load, None, v, steps=6)
        writer.write_index(6)
        return directory

    @cached_property
    def circuit(self) -> bytes:
        """An OpenDSS file with a regulator."""
        folder = self.folder("circuit")
        small_circuit(folder, regulator=REGULATOR)
        return (folder / "feeder.dss").read_bytes()

    @cached_property
    def tiny_circuit(self) -> bytes:
        """An OpenDSS file with lines, a transformer, a capacitor and a PV system."""
        origin = two_lines().origin
        assert isinstance(origin, DssOrigin)
        return "\n".join(origin.commands).encode()

    @cached_property
    def net(self) -> bytes:
        """A pandapower net."""
        from support.pandapower_nets import quiet, small_net

        with quiet() as pp:
            return str(pp.to_json(small_net())).encode()


def _model() -> dpf.LoadModel:
    return made_up.load_model(insecure_seed=True)


@contextmanager
def swapped(path: Path, content: bytes) -> Iterator[None]:
    """Another file in the place of a file, for a while; a reader may still have mapped the one before."""

    def put(given: bytes) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(given)

    before = path.read_bytes()
    put(content)
    try:
        yield
    finally:
        put(before)
