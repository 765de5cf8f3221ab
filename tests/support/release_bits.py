"""Makes the small release in every mode and prints the hash of every file; for the tests of equal bits.

Run as `python -m support.release_bits [--workers N]`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from dp_powerflow.pipeline.release import run_release
from support.small import TABLES, TWIN, small_config, tree_hash
from support.small_circuits import script

DAYS = 40
NETWORKS: dict[str, dict[str, Any]] = {
    "true-network": {},
    "twin-network": {**TABLES, "transformers": True, "capacitors": True},
    "twin-as-operated": TWIN,
    "twin-scaled_down": TWIN,
    "twin-with-histories": TWIN,
}


def release_bits(folder: Path, mode: str, workers: int) -> dict[str, str]:
    """Hashes of the released files, and of the twin in the private state.

    The manifest of a release on the true network commits to its evidence, which is INTERNAL and may end in
    other bits on another processor (BLAS). There the commitment, and the manifest's hash of itself, are left
    out: two values of all that is released.
    """
    own: dict[str, Any] = {}
    if mode == "twin-with-histories":
        start = dt.date(2022, 12, 31)
        days = [f"{start + dt.timedelta(days=k)},{k % 11 - 3.5}" for k in range(60)]
        (folder / "weather.csv").write_text("\n".join(["time,temperature", *days]) + "\n")
        own = {"loads": {"days": 16}, "weather": {"path": "weather.csv"}}
    if mode == "twin-scaled_down":
        (folder / "weak.dss").write_text(script("weak"))  # bears less than what is drawn for it
        own = {"feeder": {"source": "weak.dss"}, "nodes": {"kw_per_customer": 1.0}}
    run_release(small_config(folder, network=NETWORKS[mode], release={"days": DAYS}, **own), workers=workers)
    private = sorted((folder / "state").rglob("twin-*.json"))
    twins = {f"state: {path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in private}
    manifest = json.loads((folder / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert mode != "twin-scaled_down" or manifest["data"]["extras"]["scaled_down_snapshots"]
    if mode == "true-network":
        del manifest["internal_report"]["sha256"], manifest["manifest_sha256"]
    stated = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return tree_hash(folder / "out") | twins | {"manifest.json": stated}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    found = {}
    for mode in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            found[mode] = release_bits(Path(folder), mode, options.workers)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
