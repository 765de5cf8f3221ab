"""pandapower as the engine that builds admittances: import, checks in words of the net, the branch model."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from dp_powerflow.errors import FeederError, FeederRejectedError, MissingExtraError
from dp_powerflow.grid.buses import Problems

DRAWING = ("load", "asymmetric_load", "motor", "ward", "xward")
FEEDING = ("sgen", "asymmetric_sgen", "gen")
ZERO_IMPEDANCE = "an element of the feeder has zero impedance; give it a small one, such as 1e-6 ohm"

_ENDS = {
    "ext_grid": ("bus",),
    **dict.fromkeys((*DRAWING, *FEEDING), ("bus",)),
    "storage": ("bus",),
    "shunt": ("bus",),
    "line": ("from_bus", "to_bus"),
    "impedance": ("from_bus", "to_bus"),
    "trafo": ("hv_bus", "lv_bus"),
    "trafo3w": ("hv_bus", "mv_bus", "lv_bus"),
    "switch": ("bus",),
}
LEFT_OUT = {"storage": "storage units", "dcline": "dc lines"}
"""Tables of elements that are modelled in no mode → what they are called."""
_NOT_LINEAR = ("svc", "tcsc", "ssc", "vsc", "vsc_stacked", "vsc_bipolar", "b2b_vsc", "bi_vsc")
# Options a net may carry that change its admittances; all others only steer pandapower's solver.
_MODEL_OPTIONS = (
    "trafo_model",
    "trafo3w_losses",
    "switch_rx_ratio",
    "neglect_open_switch_branches",
    "consider_line_temperature",
)


def require(package: str) -> Any:
    """Import pandapower or simbench, or say how to install it."""
    try:
        with third_party_warnings():
            return importlib.import_module(package)
    except ModuleNotFoundError:
        raise MissingExtraError(package, "pandapower") from None


@contextmanager
def third_party_warnings() -> Iterator[None]:
    """Keep what pandapower deprecates in itself and pandas from the user, who can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


class Names:
    """Names of elements: the one the net states where it is unique, else kind and index."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self._by_kind: dict[str, dict[int, str]] = {}

    def of(self, kind: str, index: int) -> str:
        """Name of one element of a table, by its index there."""
        if kind not in self._by_kind:
            self._by_kind[kind] = self._unique(kind)
        return self._by_kind[kind][index]

    def _unique(self, kind: str) -> dict[int, str]:
        table = self._net[kind]
        stated = list(table["name"]) if "name" in table else [None] * len(table)
        count = Counter(name for name in stated if isinstance(name, str) and name.strip())
        names: dict[int, str] = {}
        for index, name in zip(table.index, stated, strict=True):
            if isinstance(name, str) and count[name] == 1:
                names[int(index)] = name
                continue
            made = f"{kind} {index}"
            while made in count:
                made += "'"
            names[int(index)] = made
        return names


def in_service(net: Any, kind: str) -> list[Any]:
    """Rows of a table that are in service; their index is `Index`."""
    if not len(net.get(kind, ())):
        return []
    table = net[kind]
    serving = [k for k, serves in enumerate(table["in_service"].tolist()) if serves]
    # Named tuples would be a class of their own for every call, which takes longer than a small table.
    names = ["Index", *map(str, table.columns)]
    columns = [table.index.tolist(), *(column.tolist() for _, column in table.items())]
    return [
        SimpleNamespace(**{name: column[k] for name, column in zip(names, columns, strict=True)})
        for k in serving
    ]


def check_net(net: Any) -> None:
    """Refuse what cannot be represented, in words of the net: all of it at once."""
    problems = Problems(
        FeederRejectedError(
            f"the pandapower net has no proper table '{kind}'; load it with pandapower.from_json, which "
            "brings old formats up to date, and save it again"
        )
        for kind, columns in {"bus": ("vn_kv", "in_service"), **_ENDS}.items()
        if not set(columns) <= set(getattr(net.get(kind), "columns", ()))
    )
    problems.refuse()
    if not len(net.bus):
        raise FeederError("the pandapower net has no bus; add buses, lines and loads")
    problems.add(*_wrong_ends(net))
    problems.refuse()
    problems.add(*_not_represented(net))
    problems.refuse()


def _wrong_ends(net: Any) -> Iterator[FeederError]:
    """Elements on buses that the net does not have."""
    names = Names(net)
    known = set(net.bus.index)
    for kind, columns in _ENDS.items():
        for column in columns:
            yield from _strange_ends(names, kind, net[kind].index, net[kind][column], known)
    joins = net.switch[net.switch.et == "b"]
    yield from _strange_ends(names, "switch", joins.index, joins.element, known)


def _not_represented(net: Any) -> Iterator[FeederError]:
    names = Names(net)
    for kind in _NOT_LINEAR:
        count = len(in_service(net, kind))
        if count:
            yield FeederError(
                f"the net has {count} elements of kind {kind} in service, which no constant admittance "
                "stands for; replace them with loads or static generators, or take them out of service",
                code="feeder-not-modelled",
            )
    alive = set(net.bus.index[net.bus.in_service.astype(bool)])
    slack_gens = [row for row in in_service(net, "gen") if row.slack]
    if not any(row.bus in alive for row in [*in_service(net, "ext_grid"), *slack_gens]):
        yield FeederError(
            "the feeder has no voltage source; add an external grid in service, on a bus in service",
            code="feeder-without-source",
        )
    for kind in (*DRAWING, *FEEDING):
        for row in in_service(net, kind):
            if row.bus not in alive:
                yield FeederError(
                    f"{kind} '{names.of(kind, row.Index)}' is in service, but its bus "
                    f"'{names.of('bus', row.bus)}' is not; put the bus into service, "
                    f"or take the {kind} out of it",
                    code="feeder-unknown-bus",
                )


def _strange_ends(names: Names, kind: str, index: Any, buses: Any, known: set[int]) -> Iterator[FeederError]:
    for element, bus in zip(index, buses, strict=True):
        if bus not in known:
            yield FeederError(
                f"{kind} '{names.of(kind, element)}' is on bus {bus}, which the net does not have; "
                "correct its bus, or remove it",
                code="feeder-unknown-bus",
            )


def with_branch_model(net: Any) -> Any:
    """Copy of the net with sources, branches and shunts alone, its branch model in `_ppc`.

    Transformers are left as pandapower's Γ of series and shunt figures, before they become a π: `Circuit`
    does that.
    """
    pandapower = require("pandapower")
    passive = _passive(net)
    try:
        # No iteration: what is wanted is what pandapower sets up before the first one.
        with third_party_warnings(), np.errstate(divide="ignore", invalid="ignore"):
            pandapower.runpp(
                passive,
                calculate_voltage_angles=True,
                init="flat",
                max_iteration=0,
                numba=False,
                lightsim2grid=False,
            )
    except pandapower.LoadflowNotConverged:
        pass
    except ArithmeticError:
        raise FeederError(ZERO_IMPEDANCE, code="feeder-zero-impedance") from None
    except (UserWarning, ValueError, KeyError, IndexError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise FeederRejectedError(f"pandapower rejects the net; correct it: {reason}") from None
    return passive


def own_copy(net: Any) -> Any:
    """A net whose tables may be changed without changing those of another, as long as nobody adds rows.

    Empty tables and the library of types are shared: a deep copy of a small net takes longer than to solve
    it.
    """
    copied = net.__class__.__new__(net.__class__)
    copied._setattr("_allow_invalid_attributes", net._allow_invalid_attributes)
    for name, value in net.items():
        if hasattr(value, "columns"):
            copied[name] = value.copy() if len(value) else value
        else:
            copied[name] = value if name == "std_types" else copy.deepcopy(value)
    return copied


def _passive(net: Any) -> Any:
    passive = own_copy(net)
    for kind in ("load", "sgen", "asymmetric_load", "asymmetric_sgen", "motor", "xward", *LEFT_OUT):
        passive[kind] = passive[kind].iloc[:0]
    passive["gen"] = passive["gen"][passive["gen"]["slack"].astype(bool)]
    passive["ward"] = passive["ward"].assign(ps_mw=0.0, qs_mvar=0.0)
    with third_party_warnings():
        for row in in_service(net, "xward"):
            require("pandapower").create_ward(passive, row.bus, 0.0, 0.0, row.pz_mw, row.qz_mvar)
    options = passive.get("user_pf_options") or {}
    kept = {key: options[key] for key in _MODEL_OPTIONS if key in options}
    passive["user_pf_options"] = kept | {"trafo_model": "pi"}
    return passive
