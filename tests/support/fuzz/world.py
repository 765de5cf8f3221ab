"""What the doors need: valid files of every format, made by the program itself, each when it is asked for."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dp_powerflow as dpf
from dp_powerflow.corpus.gridfm.network import NodeFacts
from dp_powerflow.corpus.gridfm.schema import GridfmStyle
from dp_powerflow.corpus.gridfm.tables import GridfmWriter
from dp_powerflow.corpus.schema import ExtrasLayout
from dp_powerflow.fleet.manifest import fleet_manifest, read_entries
from dp_powerflow.fleet.publishing import fleet_page, read_summaries
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.manifest.model import DIGEST, canonical_json, digest_of
from dp_powerflow.pipeline.plan import keep_receipt
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import PrivateState
from support import manifest_releases as made_up
from support.corpora import ring
from support.small_circuits import REGULATOR, small_circuit
from support.tiny_feeder import two_lines

SECRET = "zq7canary"
"""Part of the names of customers: no message may hold it."""
SEED = 7
DAYS = ("2024-05-01", "2024-05-02", "2024-05-03")
STEP_MINUTES = 360
CUSTOMERS = tuple(f"{SECRET}{letter}" for letter in "abcd")
FLEET = "north"


class World:
    """Valid files below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.closed = root / "closed"
        self.closed.mkdir(parents=True, exist_ok=True)

    def folder(self, name: str) -> Path:
        """A folder of this name, made if it is not there."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @cached_property
    def release(self) -> made_up.Made:
        """A release on a twin, with all that is published beside the voltages."""
        extras = ExtrasLayout(loads=True, generation=True, sources=3, regulators=2, capacitors=2, mended=True)
        chosen = made_up.twin_config(release={"network_epsilon_cap": 50.0})
        beside: dict[str, Any] = {
            "extras": extras,
            "connections": ring(made_up.LAYOUT.nodes, coordinates=False),
            "seed": SEED,
        }
        return made_up.make_release(self.folder("release"), chosen, _model(), earlier=1, **beside)

    @cached_property
    def true_release(self) -> made_up.Made:
        """A release on the true network."""
        return made_up.make_release(self.folder("true"), model=_model(), seed=SEED)

    @cached_property
    def fleet(self) -> Path:
        """The corpus of a fleet of two feeders."""
        place, names = self.folder("fleet") / "corpus", ("feeder-0001", "feeder-0002")
        model = _model()
        for number, name in enumerate(names):
            chosen = made_up.twin_config(
                release={"id": f"{FLEET}_{name}", "network_epsilon_cap": 50.0},
                network={"id": f"{FLEET}_{name}"},
            )
            inputs, _ = made_up.make_inputs(self.folder(f"fleet/{number}"), chosen, model, seed=SEED)
            made_up.write_release(place / f"feeder={name}", inputs)
        entries = read_entries(place)
        page = fleet_page(FLEET, entries, read_summaries(place, entries)).to_html()
        (place / "fleet.html").write_bytes(page)
        manifest = fleet_manifest(FLEET, "one", entries, sha256(page).hexdigest())
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
        register = {
            "alder": {"name": "feeder-0001", "charged under": ["r-1"]},
            "b/irch": {"name": "f2", "charged under": []},
        }
        state.write_internal(FLEET, "feeders.json", json.dumps(register).encode())
        failed = {
            "marking": "INTERNAL",
            "fleet": FLEET,
            "failed": [{"feeder": "alder", "name": "f", "problem": "p"}],
        }
        state.write_internal(FLEET, "failures.json", json.dumps(failed).encode())
        return made.state

    @cached_property
    def twin_record(self) -> bytes:
        """A twin that is kept."""
        key = dpf.StreamKey.from_insecure_seed(1)
        return (
            dpf.draw_twin(two_lines(), dpf.TwinDesign(epsilon=1.0, change=0.05), key=key)
            .record.to_json()
            .encode()
        )

    @cached_property
    def gridfm(self) -> Path:
        """Tables of a published twin."""
        feeder, directory = dpf.open_feeder("ieee13"), self.folder("gridfm") / "twin"
        nominal = (feeder.load_shares @ feeder.nominal_load)[feeder.retained]
        load = nominal * np.linspace(0.3, 1.0, 6)[:, None]
        v = np.empty((len(load), len(feeder.nodes)), dtype=np.complex128)
        v[:, feeder.energised], v[:, feeder.slack] = dpf.solve(feeder, load, all_nodes=True).v, feeder.v_slack
        order = np.arange(len(feeder.nodes), dtype=np.int64)
        writer = GridfmWriter(
            directory, feeder, facts=NodeFacts(order=order, released=len(order) // 2), style=GridfmStyle()
        )
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

    def readings(self, unit_factor: float = 1.0) -> list[tuple[str, str, float]]:
        """Customer, stamp and reading [kWh]."""
        steps = 1440 // STEP_MINUTES
        return [
            (customer, f"{day}T{hour * 24 // steps:02d}:00:00", unit_factor * (2.0 + k + 0.25 * hour))
            for k, customer in enumerate(CUSTOMERS)
            for day in DAYS
            for hour in range(steps)
        ]

    def long_csv(self, unit_factor: float = 1.0) -> bytes:
        rows = [f"{customer},{stamp},{value:.4f}" for customer, stamp, value in self.readings(unit_factor)]
        return "\n".join(["customer,time,kwh", *rows, ""]).encode()

    def wide_csv(self) -> bytes:
        found: dict[str, dict[str, float]] = {}
        for customer, stamp, value in self.readings():
            found.setdefault(stamp, {})[customer] = value
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["time", *CUSTOMERS])
        writer.writerows([stamp, *(row[name] for name in CUSTOMERS)] for stamp, row in found.items())
        return out.getvalue().encode()

    def long_parquet(self) -> bytes:
        customer, stamp, value = zip(*self.readings(), strict=True)
        return parquet_bytes(pa.table({"customer": customer, "time": stamp, "kwh": value}))

    def wide_parquet(self) -> bytes:
        rows = [line.split(",") for line in self.wide_csv().decode().splitlines()]
        columns = {name: pa.array([float(row[k]) for row in rows[1:]]) for k, name in enumerate(rows[0]) if k}
        return parquet_bytes(pa.table({"time": [row[0] for row in rows[1:]]} | columns))

    @staticmethod
    def services_csv() -> bytes:
        rows = [f"{customer},p{k},n{k}.1,homes,5.0,alder" for k, customer in enumerate(CUSTOMERS)]
        return "\n".join(["customer,load_point,node,class,scale_kw,feeder", *rows, ""]).encode()


def _model() -> dpf.LoadModel:
    return made_up.load_model(insecure_seed=True)


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@contextmanager
def swapped(path: Path, content: bytes) -> Iterator[None]:
    """Another content in the place of a file, for a while."""
    before = path.read_bytes()
    mode = path.stat().st_mode & 0o777
    _write(path, content, mode)
    try:
        yield
    finally:
        _write(path, before, mode)


def _write(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)


def copied(source: Path, target: Path) -> Path:
    """A fresh copy of a directory, with its modes."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


@contextmanager
def without_warnings() -> Iterator[None]:
    """While valid files are made, nobody looks at warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
