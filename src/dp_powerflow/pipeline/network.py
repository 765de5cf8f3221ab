"""The network evidence of one config: INTERNAL, from the true network and the released load model."""

from __future__ import annotations

from dp_powerflow.config import Config, TrueNetwork
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.evidence.calibration import Progress
from dp_powerflow.evidence.collect import Evidence, Instance, Policy, collect_evidence
from dp_powerflow.evidence.lines.collect import LineReport, LineRequest, collect_lines
from dp_powerflow.evidence.lines.losses import LineLoss
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
    solar = solar_of(config, feeder, model.n_steps)
    law = nodes.law(model, feeder)
    return collect_evidence(
        Instance(Network(feeder), law, solar.generation, solar.voltvar),
        policy_of(config),
        key.bind("release", config.release.id).bind("purpose", CALIBRATION),
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
        engine = LineLoss(feeder, nodes.law(model, feeder), generation=solar.generation)
        return collect_lines(engine, line_request(config, count, whole=whole), bound_key, progress)
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
