"""The inverse of Φ by `scipy.special`, whose import takes longer than most commands that need it once."""

from __future__ import annotations


def normal_quantile(p: float) -> float:
    """Φ⁻¹(p), with the bits of `scipy.special.ndtri`; `_bits.linear.ndtri1` is the one for compiled code."""
    from scipy.special import ndtri  # a tenth of a second

    return float(ndtri(p))
