"""The network evidence of one config: INTERNAL, from the true network and the released load model."""

from __future__ import annotations

import numpy as np

from dp_powerflow.config import Config, TrueNetwork
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.evidence.calibration import Progress
from dp_powerflow.evidence.collect import Evidence, Policy, collect_evidence
from dp_powerflow.evidence.from_model import node_law
from dp_powerflow.evidence.lines.collect import LineReport, LineRequest, collect_lines
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.reduction import Network
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.pipeline.assembly import NodePlan
from dp_powerflow.pipeline.solar import solar_of
from dp_powerflow.privacy.random import StreamKey

CALIBRATION = "calibration of the certificate"
_REGRESSED_DAYS = 30


def true_section(config: Config) -> TrueNetwork:
    """The section [network] of mode 'true-network'."""
    if not isinstance(config.network, TrueNetwork):
        raise ConfigError(
            "a twin needs no network evidence: its guarantee holds for every network ('dp-powerflow plan')"
        )
    return config.network


def policy_of(config: Config) -> Policy:
    """What the config asks of the network evidence."""
    section = true_section(config)
    return Policy(
        radius=section.radius,
        epsilon=section.epsilon,
        delta=section.delta,
        days=config.release.days,
        calibration_days=section.calibration_days,
    )


def evidence_of(
    config: Config,
    feeder: Feeder,
    model: LoadModel,
    nodes: NodePlan,
    key: StreamKey,
    *,
    progress: Progress | None = None,
    curves: bool = True,
) -> Evidence:
    """Theorem 1 in every mode, on draws from a stream that no release uses."""
    if len(nodes.nodes) != len(feeder.retained):
        raise PrivacyError(
            f"{len(feeder.retained) - len(nodes.nodes)} nodes carry generation but no load of their own; the "
            "closed-form certificate does not cover them"
        )
    scale = nodes.scale_kw if model.scaled else None
    law = node_law(model, nodes.classes, scale, feeder.base_mva, day_type=model.classes[0].day_type)
    bounds = [model.find(name, model.classes[0].day_type).bounds for name in model.class_names]
    margins = (np.array([low for low, _ in bounds]), np.array([high for _, high in bounds]))
    generator = key.bind("release", config.release.id).stream(CALIBRATION).generator
    solar = solar_of(config, feeder, model.n_steps)
    return collect_evidence(
        Network(feeder),
        law,
        margins,
        policy_of(config),
        generator,
        generation=solar.generation,
        voltvar=solar.voltvar,
        progress=progress,
        curves=curves,
    )


def lines_of(
    config: Config,
    feeder: Feeder,
    model: LoadModel,
    nodes: NodePlan,
    key: StreamKey,
    *,
    progress: Progress | None = None,
    draws: int | None = None,
    whole: bool = False,
) -> LineReport | str | None:
    """Exact losses per line, words where there are none, None where the config does not ask for them.

    Parameters
    ----------
    draws : in place of `network.line_draws`.
    whole : protected x, audit and attack as well, not the losses alone.
    """
    count = true_section(config).line_draws if draws is None else draws
    if count == 0:
        return None
    solar = solar_of(config, feeder, model.n_steps)
    if not config.network.random_reactive:
        return "none: with fixed power factors one snapshot tells every change of a line, almost surely"
    if solar.voltvar is not None:
        return "none: losses per line are not evaluated under volt-var control"
    bound_key = key.bind("release", config.release.id)
    try:
        scale = nodes.scale_kw if model.scaled else None
        law = node_law(model, nodes.classes, scale, feeder.base_mva, day_type=model.classes[0].day_type)
        return collect_lines(
            feeder,
            law,
            line_request(config, count, whole=whole),
            lambda purpose: bound_key.stream(purpose).generator,
            released=nodes.nodes,
            generation=solar.generation,
            progress=progress,
        )
    except PrivacyError as error:
        return f"none: {error}"


def line_request(config: Config, draws: int, *, whole: bool) -> LineRequest:
    """What the config asks about the lines: ε and δ of one day are the policy's, shared by the days."""
    days = config.release.days
    return LineRequest(
        x=true_section(config).line_change,
        epsilon=config.network.epsilon / days,
        delta=config.network.delta / days,
        draws=draws,
        protected_draws=max(20, draws // 2) if whole else 0,
        audit_days=max(20, draws // 3) if whole else 0,
        attack_days=5 * _REGRESSED_DAYS if whole else 0,
        regressed_days=_REGRESSED_DAYS,
    )
