"""The radius that the account of a true network is about: when it may be restated, and how to do it.

An account adds up figures about changes up to one r. What was charged for changes up to r also covers every
smaller change, so an account may be restated for a smaller r: its charges count there in full. It may not be
restated for a larger one, unless nothing was charged yet.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from dp_powerflow.config import Config
from dp_powerflow.errors import PrivacyError
from dp_powerflow.manifest.true import account_neighbours
from dp_powerflow.privacy.ledger.accounts import InstanceCap
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account

_UNIT = re.compile(r".* at most r = (?P<radius>\S+) p\.u\.(?: on a base of (?P<base>\S+) MVA)?")


def restate_radius(ledger: Ledger, name: str, radius: float, reason: str) -> None:
    """Make an account of a true network one about changes up to another r; what was spent stays spent.

    Raises
    ------
    PrivacyError : the account is of another kind, r is larger and something was charged, or there is no
        reason.
    """
    account = ledger.named(name)
    stated = None if account is None else _stated(account)
    if account is None or stated is None:
        raise PrivacyError(
            f"'{name}' is not an account of a true network, so it has no radius; list the accounts with "
            "'dp-powerflow ledger'"
        )
    own, base_mva = stated
    if not 0.0 < radius < float("inf"):
        raise PrivacyError("a radius is a positive number in per unit; give one with --radius", code="radius")
    if account.spends and radius > own:
        raise PrivacyError(_larger(account, own), code="radius")
    assert isinstance(account.cap, InstanceCap)
    cap = replace(account.cap, unit=account_neighbours(radius, base_mva))
    ledger.change_cap(name, cap, reason, restated=True)


def refuse_another_radius(ledger: Ledger, config: Config, dataset: str, cap: InstanceCap) -> None:
    """Say how to go on where the account of a network is about changes up to another r than the config."""
    named = config.release.continues_network
    known = (ledger.find(InstanceCap.kind, dataset), None if named is None else ledger.named(named))
    for account in sorted(filter(None, known), key=lambda item: item.changes[0].entry):
        stated = _stated(account)
        if stated is None:
            continue
        asked = _parsed(str(cap.unit))
        if account.cap.unit == cap.unit or asked is None or asked[1] != stated[1]:
            return  # the same, or another power base: the ledger has words for that
        if account.spends and asked[0] > stated[0]:
            raise PrivacyError(f"{_larger(account, stated[0])}; nothing was spent", code="radius")
        raise PrivacyError(
            f"account {account.name} of this network adds up changes of lines up to r = {stated[0]!r} p.u., "
            f"and this release is about r = {asked[0]!r} p.u.; {_why(account)}, so restate it with "
            f"`{_command(config, account, cap, asked[0])}` and run this again; nothing was spent",
            code="radius",
        )


def _command(config: Config, account: Account, cap: InstanceCap, radius: float) -> str:
    """What to type; figures of the cap that the config states otherwise are in it too."""
    own = account.cap
    assert isinstance(own, InstanceCap)
    figures = [
        *(["--epsilon", repr(cap.epsilon)] if own.epsilon != cap.epsilon else []),
        *(["--delta", repr(cap.delta)] if own.delta != cap.delta else []),
    ]
    state, reason = str(config.release.state), f"radius restated as {radius!r}"
    parts = ["dp-powerflow", "ledger", state, "--account", account.name, "--radius", repr(radius)]
    return shlex.join([*parts, *figures, "--reason", reason])


def _why(account: Account) -> str:
    if account.spends:
        return "what was charged for the larger changes counts in full for smaller ones"
    return "nothing was charged to it yet"


def _larger(account: Account, radius: float) -> str:
    return (
        f"account {account.name} was charged for changes of lines up to r = {radius!r} p.u., and what was "
        f"released then has no bound for larger ones; set network.radius = {radius!r}"
    )


def _stated(account: Account) -> tuple[float, float] | None:
    """Radius and power base of an account of a true network, None of any other account."""
    return _parsed(str(account.cap.unit)) if isinstance(account.cap, InstanceCap) else None


def _parsed(unit: str) -> tuple[float, float] | None:
    """Radius [p.u.] and power base [MVA] in the words of `account_neighbours`."""
    found = _UNIT.fullmatch(unit)
    return None if found is None else (float(found["radius"]), float(found["base"] or 1.0))
