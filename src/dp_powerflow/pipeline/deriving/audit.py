"""`verify --private` of a derived release: all its bytes, computed again from the private state. PRIVATE."""

from __future__ import annotations

from pathlib import Path

from dp_powerflow.config import Config
from dp_powerflow.manifest.model import ReleaseError
from dp_powerflow.manifest.verify import VerifyReport, manifest_content, no_manifest
from dp_powerflow.pipeline.deriving.manifest import FROM_FILES
from dp_powerflow.pipeline.deriving.opened import open_files
from dp_powerflow.pipeline.deriving.owner import basis_of_config
from dp_powerflow.pipeline.deriving.verify import DERIVATION, check_derived, with_derivation


def audit_derived(path: Path, config: Config, state: Path, *, workers: int | None = None) -> VerifyReport:
    """Everything that `verify_derived` checks, then every byte from twin and load model. INTERNAL.

    Parameters
    ----------
    state : private state directory of the data owner.

    Raises
    ------
    DpPowerflowError : there is no derived release, or it was derived from released files.
    """
    try:
        opened = open_files(path)
        report = check_derived(opened)
    except (ValueError, RecursionError):
        return no_manifest(manifest_content(path))
    if opened.manifest is not None and opened.manifest.source.derived_from == FROM_FILES:
        raise ReleaseError(
            f"{path} was derived from released files, so its {DERIVATION} needs nothing private; give the "
            "directory of the release with --release instead"
        )
    return with_derivation(
        report, opened, lambda settings: basis_of_config(config, settings, state_path=state), workers
    )
