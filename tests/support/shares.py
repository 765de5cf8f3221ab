"""What divisible noise is worth when some of its shares are missing.

n shares G − G′ with G, G′ ~ Gamma(1/n, 1) add up to Laplace(1). If only a part a of them is added, the sum is
the difference of two Gamma(a, 1), whose density is

    f(x) = |x|^(a−½)·K_(a−½)(|x|) / (√π·2^(a−½)·Γ(a)),

K the modified Bessel function of the second kind. f(x)/f(x − 1) is largest at x = 0, where f has a cusp for
a > ½ and a pole else: the pure ε is ln f(0)/f(1), above 1 for a < 1 and infinite for a ≤ ½.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import integrate, optimize, special

from dp_powerflow.errors import PrivacyError

_REACH = 500.0
"""Beyond so many λ the noise has no mass that a double could tell."""


def density(x: float, part: float) -> float:
    """f(x) of the sum of a part of the shares [1/λ]; infinite at 0 for a part up to a half."""
    order, size = part - 0.5, abs(x)
    if size == 0.0:
        return math.inf if order <= 0.0 else math.gamma(order) / (2.0 * math.sqrt(math.pi) * math.gamma(part))
    scaled = float(special.kve(order, size)) * math.exp(-size)
    return float(size**order * scaled / (math.sqrt(math.pi) * 2.0**order * math.gamma(part)))


def mass_up_to(top: float, part: float) -> float:
    """Probability that the noise lies between 0 and `top`·λ."""
    if part >= 0.5:
        return _quad(lambda y: 2.0 * y * density(y * y, part), 0.0, math.sqrt(top))
    # x = y^(1/2a) takes the pole |x|^(2a−1) out of the integral.
    power = 1.0 / (2.0 * part)
    limit = math.gamma(0.5 - part) / (4.0**part * math.sqrt(math.pi) * math.gamma(part))

    def without_pole(y: float) -> float:
        x = y**power
        return float(power * (limit if x < 1e-200 else density(x, part) * x ** (1.0 - 2.0 * part)))

    return _quad(without_pole, 0.0, top ** (1.0 / power))


def pure_epsilon(part: float) -> float:
    """ε with δ = 0 of a total whose noise has a part of its shares."""
    return math.log(density(0.0, part) / density(1.0, part))


def delta_of_part(part: float, epsilon: float) -> float:
    """δ at ε of a total whose noise was made for ε = 1 and has a part of its shares.

    Parameters
    ----------
    part : share of the meters that add their noise, of those it was divided among.

    Returns
    -------
    δ = ∫ max(f(x) − e^ε·f(x − 1), 0) dx, for the largest change that one reading can make.
    """
    if not (0.0 < part <= 1.0 and epsilon >= 0.0):
        raise PrivacyError("δ of missing shares needs a part above 0 and at most 1, and an ε of at least 0")
    if pure_epsilon(part) <= epsilon * (1.0 + 1e-12):
        return 0.0

    def ahead(x: float) -> float:
        """Of which sign f(x) − e^ε·f(x − 1) is."""
        return math.log(density(x, part)) - epsilon - math.log(density(x - 1.0, part))

    # The ratio falls on both sides of 0: to 1 at ½ on the right, to e far on the left.
    tiny = 1e-250
    right = 0.5 if epsilon == 0.0 else float(optimize.brentq(ahead, tiny, 0.5, xtol=1e-15))
    far = ahead(-_REACH) > 0.0
    left = _REACH if far else -float(optimize.brentq(ahead, -_REACH, -tiny, xtol=1e-15))
    own = mass_up_to(right, part) + mass_up_to(left, part)
    other = mass_up_to(1.0 + left, part) - mass_up_to(1.0 - right, part)
    return max(own - math.exp(epsilon) * other, 0.0)


def _quad(function: Callable[[float], float], low: float, high: float) -> float:
    """∫ of a smooth function; most of it lies near 0, so far ends are taken by themselves."""
    return float(integrate.quad(function, low, high, limit=200, points=(2.0, 8.0))[0])
