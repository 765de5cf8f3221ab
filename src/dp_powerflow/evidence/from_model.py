"""From the released load model to the law of the loads at the nodes."""

from __future__ import annotations

import numpy as np

from dp_powerflow.errors import PrivacyError
from dp_powerflow.evidence.law import NodeLaw
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.units import FloatArray, kw_to_pu


def node_law(
    model: LoadModel,
    node_classes: tuple[str, ...],
    scale_kw: FloatArray | None,
    base_mva: float,
    *,
    day_type: str | None = None,
    log_accept: FloatArray | None = None,
) -> NodeLaw:
    """Law of the loads that the sampler draws for these nodes on days of one type.

    Parameters
    ----------
    node_classes : class of every node.
    scale_kw : (node,) public scale [kW] if the model is relative to one.
    log_accept : (class,) log probability of the margins, in the order of `model.class_names`; None for
        untruncated draws.
    """
    names = model.class_names
    parts = [model.find(name, day_type) for name in names]
    if any(len(part.components) > 1 for part in parts):
        raise PrivacyError("Theorem 1 is for one Gaussian per class; fit the model with components = 1")
    of_node = np.array([names.index(name) for name in node_classes], dtype=np.int64)
    kilowatt = np.ones(len(node_classes)) if scale_kw is None else np.asarray(scale_kw, dtype=np.float64)
    scale = np.asarray(kw_to_pu(kilowatt, base_mva))
    reactive = [part.reactive for part in parts]
    covariances = [law.covariance for law in reactive]
    # Classes share one public correlation; what differs is the size c·p̄.
    shared = covariances[0]
    if shared is not None and any(
        other is None or not np.array_equal(other, shared) for other in covariances
    ):
        raise PrivacyError("the reactive load of all classes must have one covariance for this certificate")
    sizes = np.array([law.spread * law.reference for law in reactive])
    truncated = log_accept is not None
    return NodeLaw(
        class_of=of_node,
        mean=np.array([part.components[0].mean for part in parts]),
        covariance=np.array([part.components[0].covariance for part in parts]),
        scale=scale,
        tan_theta=np.array([law.tan_theta for law in reactive])[of_node],
        p_min=np.array([part.bounds[0] for part in parts]) if truncated else None,
        p_max=np.array([part.bounds[1] for part in parts]) if truncated else None,
        log_accept=log_accept,
        q_sigma=None if shared is None else scale * sizes[of_node],
        q_covariance=shared,
    )
