"""`verify --private --config`: what an auditor makes again from the private inputs. PRIVATE, INTERNAL.

Apart from `verify`, which a stranger runs and which therefore sees no code that reads meters.
"""

from __future__ import annotations

from pathlib import Path

from dp_powerflow.config import Config
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.inputs import read_network
from dp_powerflow.pipeline.manifest.model import MODEL_FILE
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.verify.private import verify_private
from dp_powerflow.pipeline.verify.report import VerifyReport
from dp_powerflow.privacy.state import PrivateState


def audit_release(path: Path, config: Config, state_path: Path) -> VerifyReport:
    """`verify_private`, with report and twin made again by the code that makes releases. INTERNAL.

    Raises
    ------
    DpPowerflowError : there is no release or no private state directory, or an input cannot be read.
    """
    state, mode = PrivateState.inspect(state_path), mode_of(config)
    model = LoadModel.load(path / MODEL_FILE)
    inputs = read_network(config, state, model.n_steps)
    kept = mode.kept_is_the_one(inputs)
    return verify_private(
        path,
        state_path,
        recompute=lambda: mode.report_again(inputs, model).content,
        redraw=None if kept is None else lambda: bool(kept),
    )
