"""What was written in the layout of another tool."""

from __future__ import annotations

import json
from dataclasses import asdict

from dp_powerflow.corpus.gridfm.export import ExportedNetwork, GridfmExport
from dp_powerflow.report import Rendered


def render_export(made: GridfmExport) -> Rendered:
    """The networks of a folder for gridfm-graphkit, and how to train on it."""
    lines = [
        "| network | buses | nodes merged | released scenarios | perturbed | networks | drawn again |",
        "|---|---|---|---|---|---|---|",
        *(_row(network) for network in made.networks),
        "",
        f"Train on it: `gridfm_graphkit train --config {made.config} --data_path {made.path}`",
    ]
    content = {
        "path": str(made.path),
        "config": str(made.config),
        "networks": [asdict(network) for network in made.networks],
    }
    return Rendered(lines, json.dumps(content))


def _row(network: ExportedNetwork) -> str:
    cells = (
        network.name,
        network.buses,
        network.merged,
        network.released,
        network.perturbed,
        network.networks,
        network.refused,
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"
