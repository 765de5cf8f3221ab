"""Mode 'twin-network': power flow on a differentially private twin, paid for once, drawn once, kept.

The cost follows from public constants. Everything after the twin is post-processing of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from dp_powerflow.config import TwinNetwork
from dp_powerflow.corpus.gridfm.tables import GridfmWriter
from dp_powerflow.corpus.schema import ExtrasLayout
from dp_powerflow.corpus.storage import Location, location
from dp_powerflow.corpus.tables import MOST_PLACE, Connections, opaque_buses
from dp_powerflow.errors import ConfigError, CorpusError, PowerFlowError, PrivacyError
from dp_powerflow.grid.feeder import TAPS_NOT_FOUND, BusGraph, Feeder, NetworkParameters
from dp_powerflow.grid.sources import Rebuilder, network_parameters
from dp_powerflow.manifest.model import TWIN
from dp_powerflow.manifest.twin import CHANGES, changed, charged_as, version_of
from dp_powerflow.pipeline.customers import count_customers
from dp_powerflow.pipeline.feasibility import (
    Feasibility,
    Trial,
    on_twins,
    refuse_endless,
    stand_in_twins,
    summed_customers,
)
from dp_powerflow.pipeline.inputs import KEY_GONE, NetworkInputs, Solar, network_chunks
from dp_powerflow.pipeline.modes import base
from dp_powerflow.pipeline.parts import GraphTables, SolverMaker
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import AccountKind, Cost, GdpCost, PureCost, Scope, TwinCap
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account, Spend
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin import draw
from dp_powerflow.twin.choosing import choosing_lines
from dp_powerflow.twin.design import (
    DELTA_LIMIT,
    LINE,
    LOG_GRID,
    TwinGuarantee,
    twin_guarantee,
    twin_neighbours,
)
from dp_powerflow.units import IntArray

KIND = AccountKind.NETWORK_TWIN


class TwinMode(base.NetworkMode[TwinNetwork]):
    """Power flow on a twin."""

    section_type = TwinNetwork
    counts_customers = True

    @property
    def kept_under(self) -> str:
        """The twin, and which figures were drawn."""
        return f"{_PREFIX}{self.section.id}"

    @property
    def neighbours(self) -> Neighbours:
        """Networks that differ in one element."""
        return twin_neighbours(self.section.protected, self.section.change)

    @property
    def guarantee(self) -> TwinGuarantee:
        """What the twin promises for the change that its config names."""
        return twin_guarantee(self.section.design)

    def charge(self, request_sha256: str) -> base.NetworkCharge:
        """The cost of a whole twin, under its own id."""
        release, section = self.config.release, self.section
        # Laplace noise needs no delta, but the account of a twin may also hold Gaussian ones.
        own = section.noise == "gaussian" or release.network_delta_cap is None
        delta = section.delta if own else release.network_delta_cap
        if max(section.delta, delta or 0.0) >= DELTA_LIMIT:
            raise PrivacyError(
                f"delta of a twin must be below {DELTA_LIMIT:g}, and release.network_delta_cap with it: from "
                "there on a draw that publishes one element in a hundred whole would keep its promise; 1e-6 "
                "is a common choice; nothing was spent",
                code="delta-limit",
            )
        cap = TwinCap(release.network_epsilon_cap or section.epsilon, delta or 0.0, self.neighbours)
        otherwise = (
            f"twin '{section.id}' of this network was drawn with other noise, for another change or other "
            "figures; restore those, or choose a new twin id, which is paid for anew; nothing was spent"
        )
        return base.NetworkCharge(self._cost(Scope()), cap, section.id, self._request, otherwise)

    def charge_of(
        self, asked: base.NetworkCharge, facts: base.NetworkFacts, state: PrivateState, ledger: Ledger
    ) -> base.NetworkCharge:
        """Of a later version of the network only the elements that were replaced or added are charged.

        Which ones they are is known from the keyed hashes of the figures that were drawn before. Their noise
        is fresh (`draw_twin`); a version that was charged already costs nothing more.
        """
        account = ledger.find(KIND, facts.dataset) or _named(ledger, self.config.release.continues_network)
        paid = self._paid(account)
        if account is not None:
            self._refuse_mixed(state, account)
        for spend in paid:
            if spend.dataset == facts.dataset:
                return replace(asked, paid_by=spend.release_id, cost=spend.cost)
        if account is None:
            return asked
        self._refuse_unknown(state, account)
        if not paid:
            return replace(asked, cost=self._cost_beside_others(facts, state, account))
        # Also past another twin whose own id reads like a version of this one.
        number = 1 + max(version_of(spend.release_id, asked.paid_by) or 1 for spend in account.spends)
        cost = self._cost_of_changes(facts, state, account)
        return replace(asked, paid_by=charged_as(asked.paid_by, number), cost=cost)

    def check(self, inputs: NetworkInputs) -> Feeder:
        """What the twin would not protect is refused, and what could not be solved once it is drawn."""
        source = self._source(inputs)
        parameters = draw.parameters_of(source, self.section.design, self.section.protect)
        codes = {line.line: line.code for line in parameters.coded} if self.section.protected.codes else {}
        # Without noise: it has the structure of any twin.
        feeder = self._with_taps(source.build(parameters.levels, codes))
        self.solver(1)(feeder, inputs.solar_on(feeder), 1)
        count_customers(self.config, feeder, inputs.services)
        self.tables(location(self.config.release.output), feeder, self.released_nodes(feeder))
        try:
            network = base.Solvable(feeder, inputs.solar_on(feeder), "")
            self.connections(inputs, network, self.released_nodes(feeder), inputs.own_key)
        except CorpusError as error:
            raise ConfigError(f'{error}; leave "connections" out of network.also_publish') from None
        return feeder

    def feasibility(self, inputs: NetworkInputs, structure: Feeder) -> Feasibility:
        """Public loads on public stand-ins, which may refuse the release, and on the network (INTERNAL)."""
        refuse_endless(self.config, structure, inputs.services)
        source, design = self._source(inputs), self.section.design
        twins = stand_in_twins(source, source.parameters(), design, self.section.controls)
        drawn = partial(summed_customers, feeder=structure, services=inputs.services)
        return on_twins(Trial(inputs, self.solver, drawn), twins, structure)

    def identity(self, inputs: NetworkInputs) -> str:
        """Of the network and the parameters that twins are drawn from, whatever the design."""
        drawn = network_parameters(inputs.feeder)
        levels = ((key.quantity.value, key.element, level) for key, level in sorted(drawn.levels.items()))
        codes = ((line.line, line.code, line.candidates) for line in drawn.coded)
        own = (repr(item).encode() for item in (*levels, *codes))
        return inputs.state.identity("network", (*network_chunks(inputs.feeder), *own))

    def facts(self, inputs: NetworkInputs) -> base.NetworkFacts:
        """With figures of the elements that the twin protects."""
        return replace(super().facts(inputs), figures=partial(self._figures, inputs))

    def _figures(self, inputs: NetworkInputs, key: StreamKey) -> Mapping[str, str]:
        """Element → keyed hash of its figures, and of a line also of its buses."""
        graph, own = BusGraph.of(inputs.feeder), key.bind("purpose", "buses")
        hashed = [own.keyed_hash([name.encode()]) for name in graph.names]
        ends = {
            f"{LINE} {line.name}": sorted({hashed[graph.bus_of[node]] for node in line.nodes})
            for line in inputs.feeder.lines
        }
        return {
            element.name: " ".join([element.figures(key), *ends.get(element.name, ())])
            for element in draw.elements_of(self._parameters(inputs), self.section.design)
        }

    def network_to_solve(
        self, inputs: NetworkInputs, dataset: str, paid: Spend | None = None
    ) -> base.Solvable:
        """The twin that is kept for this network, or a fresh draw that is kept from now on."""
        twin = self._kept(inputs, dataset)
        if twin is None:
            spend = self._charge_for(inputs, dataset, paid)
            account, twin = spend.account, self._draw(inputs, spend) or self._kept(inputs, dataset)
            if twin is None:
                raise PrivacyError(KEY_GONE.format(what=f"twin '{self.section.id}'"), code="key-gone")
            self._remember(inputs, account, twin)  # first: a twin that is kept is not remembered again
            inputs.state.write_internal(self.kept_under, _file(dataset), twin.to_json().encode())
        if self._seals(inputs.state):
            inputs.state.destroy_key(self.kept_under, _product(dataset))
        return self._built(inputs, twin)

    def _seals(self, state: PrivateState) -> bool:
        return self.config.release.keys == "destroy" and not state.insecure_seed

    def make_keys(self, state: PrivateState, dataset: str) -> None:
        """Of a twin that is not drawn yet."""
        state.make_key(self.kept_under, _product(dataset), self._request)

    def kept_network(self, inputs: NetworkInputs) -> base.Solvable | None:
        """The twin that is kept for this network."""
        twin = self._kept(inputs, self.identity(inputs))
        return None if twin is None else self._built(inputs, twin)

    def network_again(self, inputs: NetworkInputs) -> base.Solvable | None:
        """The twin drawn anew."""
        dataset = self.identity(inputs)
        twin = self._draw(inputs, self._charge_for(inputs, dataset))
        return None if twin is None else self._built(inputs, twin)

    def solver(self, steps: int) -> SolverMaker:
        """Controls act on the twin unless the config freezes them."""
        return SolverMaker(self.section.controls, steps)

    def released_nodes(self, feeder: Feeder) -> IntArray:
        """Nodes with a load, or all but the sources: a twin has nothing to hide at the others."""
        if self.section.released == "all":
            return np.asarray(feeder.energised, dtype=np.int64)
        return super().released_nodes(feeder)

    def tables(self, root: Location, feeder: Feeder, released: IntArray) -> GraphTables | None:
        """The twin as tables for graph models, with the loads of some days where they are published."""
        section, days = self.section, self.config.release.days
        if section.publish == "voltages":
            return None
        order = np.concatenate([released, np.setdiff1d(np.arange(len(feeder.nodes)), released)])
        with_loads = section.publish == "network and loads"
        count = min(section.graph_days or days, days) if with_loads else 0
        phase = BusGraph.of(feeder).phase
        writer = GridfmWriter(root / TWIN, feeder, order, released=len(released), phase=phase)
        return GraphTables(writer, count)

    def extras(self, feeder: Feeder, solar: Solar) -> ExtrasLayout:
        """Functions of the twin and the drawn loads; how many there are follows from the public structure."""
        chosen, moving, acting = self.section.also_publish, feeder.as_operated, self.solver(1).acts
        feeds_in = solar.generation is not None or (acting and bool(moving.generators))
        return ExtrasLayout(
            loads="loads" in chosen,
            generation="loads" in chosen and feeds_in,
            source_phases=len(feeder.slack) if "head" in chosen else 0,
            regulators=len(moving.regulators) if acting and "states" in chosen else 0,
            capacitors=len(moving.capacitors) if acting and "states" in chosen else 0,
            scaled_down=True,
        )

    def connections(
        self, inputs: NetworkInputs, network: base.Solvable, released: IntArray, key: StreamKey
    ) -> Connections | None:
        """Those of the twin; coordinates, which it does not have, are declared public."""
        if "connections" not in self.section.also_publish:
            return None
        public = self.section.coordinates == "public"
        places = public_places(network.feeder, inputs.feeder.coordinates) if public else None
        return released_connections(network.feeder, released, key, places)

    def report(
        self, inputs: NetworkInputs, scene: base.Scene, progress: base.Progress | None = None
    ) -> base.InternalReport:
        """The guarantee of the twin; nothing of the true network: the same twin gives the same bytes."""
        found = {"guarantee": asdict(self.guarantee), "twin": scene.network.identity}
        return base.InternalReport.make(self.config.release.id, True, found)

    def plan_figures(self) -> dict[str, object]:
        """The guarantee for some changes and further twins, and what the noise costs on public feeders."""
        design, change = self.section.design, self.section.change
        return {
            "promised": self.guarantee,
            "rows": [changed(design, own, 1) for own in sorted({change, *CHANGES})],
            # As of this number of elements of one twin.
            "of_twins": {count: changed(design, change, count)["epsilon"] for count in (2, 10)},
            "choosing": "\n".join(choosing_lines(design)),
        }

    @property
    def _request(self) -> str:
        """Hash of all the public choices that decide the twin; a twin id with others is refused."""
        design = self.section.design.to_record()
        content = {"format": draw.FORMAT, "id": self.section.id, "design": design, "grid": LOG_GRID}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _cost(self, scope: Scope, times: int = 1) -> PureCost | GdpCost:
        """Of figures that enter `times` times at once, each time with fresh noise."""
        promised = self.guarantee
        if promised.mu is None:
            return PureCost(times * promised.epsilon, self.neighbours, scope)
        mu = promised.mu if times == 1 else math.nextafter(promised.mu * math.sqrt(times), math.inf)
        return GdpCost(mu, self.neighbours, scope)

    def _paid(self, account: Account | None) -> list[Spend]:
        """Charges of an account for versions of this very twin."""
        spends = () if account is None else account.spends
        own = (spend for spend in spends if spend.request_sha256 == self._request)
        return [spend for spend in own if version_of(spend.release_id, self.section.id) is not None]

    def _cost_of_changes(
        self, facts: base.NetworkFacts, state: PrivateState, account: Account
    ) -> PureCost | GdpCost:
        """The cost of the elements whose figures were never drawn.

        The ledger knows elements by their names. One with a new name counts as added, which no earlier twin
        has seen, only where no other twin is in the account and no version's figures are forgotten. Where an
        element of an earlier version is gone, the new one may be that element under another name: this
        version is then charged as a whole, or every re-export with other names would be a free draw. A new
        element beside one that was replaced or is gone may be a part of it: see `Changes`.
        """
        drawn, now = self._drawn(state, account.name), facts.figures(self._key(state, account.name))
        if drawn is None or _sealed(drawn):  # none was drawn, or nobody knows what has changed
            self._refuse_parts(drawn, now)
            return self._cost_of_all(_parts_again(account, now))
        found = draw.Changes.between(drawn, now, _joined(account))
        if not found.changed:  # other loads or switch states, the same figures: what was paid for covers it
            return PureCost(0.0, self.neighbours)
        if found.new and found.gone:
            return self._cost_of_all(found)
        alone = sum(_whole(spend.cost) for spend in account.spends) == 1
        added = found.new - found.joined if alone else frozenset[str]()
        scope = Scope(replaced=tuple(found.changed - added), added=tuple(added), joined=tuple(found.joined))
        return self._cost(scope, found.times)

    def _refuse_mixed(self, state: PrivateState, account: Account) -> None:
        for twin in {spend.release_id for spend in account.spends}:
            drawn = self._drawn(state, account.name, twin)
            if drawn and _sealed(drawn) is not self._seals(state):
                raise PrivacyError(
                    "twins of one network all keep their keys, or none: the keys of one would give the "
                    "figures of all; set release.keys as for the first; nothing was spent",
                    code="twin-changed",
                )

    def _refuse_unknown(self, state: PrivateState, account: Account) -> None:
        """Refuse a version beside twins of which nobody knows what they have drawn, or will draw."""
        for spend in account.spends:
            if not any(self._is_known(state, account, spend, other.release_id) for other in account.spends):
                raise PrivacyError(
                    f"what twin '{spend.release_id}' of this network has drawn, or will draw, is not known; "
                    "finish the release that paid for it, with the feeder as it was, or restore the private "
                    "state from a backup; nothing was spent",
                    code="twin-changed",
                )

    def _is_known(self, state: PrivateState, account: Account, spend: Spend, twin: str) -> bool:
        folder = f"{_PREFIX}{twin}"
        names = dict(state.internal_files(folder)).get(folder)
        if names is None or version_of(spend.release_id, twin) is None:
            return False
        key = state.key_of(folder, _product(spend.dataset), spend.request_sha256)
        return _figures_file(account.name) in names if _file(spend.dataset) in names else key is None

    def _cost_beside_others(
        self, facts: base.NetworkFacts, state: PrivateState, account: Account
    ) -> PureCost | GdpCost:
        """The cost of a whole twin, as often as figures of an element that others were drawn of can enter."""
        again = [_parts_again(account, facts.figures(self._key(state, account.name)))]
        for directory, names in state.internal_files():
            twin = directory.removeprefix(_PREFIX)
            spends = (spend for spend in account.spends if version_of(spend.release_id, twin) is not None)
            requests = {spend.request_sha256 for spend in spends}
            if twin == directory or _figures_file(account.name) not in names:
                continue
            drawn = self._drawn(state, account.name, twin) or {}
            for request in sorted(requests):
                key = state.stream_key().bind("twin", twin).bind("account", account.name)
                now = facts.figures(key.bind("request", request))
                self._refuse_parts(drawn, now)
                if not _sealed(drawn):
                    again.append(draw.Changes.between(drawn, now, _joined(account)))
        return self._cost_of_all(*again)

    def _refuse_parts(self, drawn: Drawn | None, now: Mapping[str, str]) -> None:
        """Refuse a new element where others are sealed: as a part of one it would have its figures twice."""
        if drawn and _sealed(drawn) and now.keys() - drawn.keys():
            raise PrivacyError(
                "the network has elements that a sealed twin of it lacks, and nobody knows what they cost; "
                'twins with later versions need release.keys = "keep" from the first on; nothing was spent',
                code="twin-changed",
            )

    def _cost_of_all(self, *found: draw.Changes) -> PureCost | GdpCost:
        """The cost of a whole twin in which figures may enter several times."""
        joined = frozenset[str]().union(*(changes.joined for changes in found))
        return self._cost(Scope(joined=tuple(joined)), max(changes.times for changes in found))

    def _source(self, inputs: NetworkInputs) -> Rebuilder:
        return Rebuilder(
            inputs.feeder, self.section.protected, drop_islanded=self.config.feeder.drop_islanded
        )

    def _parameters(self, inputs: NetworkInputs) -> NetworkParameters:
        return draw.parameters_of(self._source(inputs), self.section.design, self.section.protect)

    def _key(self, state: PrivateState, account: str) -> StreamKey:
        """Of the hashes of figures."""
        return self._bound(state.stream_key(), account)

    def _bound(self, key: StreamKey, account: str) -> StreamKey:
        """Bound to the twin, its public choices and the account of the network, whatever its version."""
        return key.bind("twin", self.section.id).bind("account", account).bind("request", self._request)

    def _draw(self, inputs: NetworkInputs, paid: Spend) -> draw.Twin | None:
        """The twin, with what was drawn before of figures that are still the same; None without its key.

        Raises
        ------
        PrivacyError : figures would be drawn again that were not paid for.
        """
        state, account = inputs.state, paid.account
        key = state.key_of(self.kept_under, _product(paid.dataset), self._request)
        if key is None:
            return None
        drawn, kept = self._drawn(state, account) or {}, dict[str, draw.Record]()
        for name, text in self._figures(inputs, self._key(state, account)).items():
            for before, record in drawn.get(name, {}).items():
                if before.split()[0] == text.split()[0]:  # the same figures, perhaps between other buses
                    kept[name] = record
        parameters, design, cost = self._parameters(inputs), self.section.design, paid.cost
        if not _whole(cost) and isinstance(cost, PureCost | GdpCost):
            drawn_again = {element.name for element in draw.elements_of(parameters, design)} - kept.keys()
            if drawn_again - {*cost.scope.replaced, *cost.scope.added}:
                raise PrivacyError(
                    f"{_figures_file(account)} of twin '{self.section.id}' lacks what earlier versions have "
                    "drawn, and nothing is drawn twice for one charge; restore it from a backup",
                    code="twin-damaged",
                )
        return draw.draw_twin(parameters, design, self._bound(key, account), kept)

    def _charge_for(self, inputs: NetworkInputs, dataset: str, paid: Spend | None = None) -> Spend:
        """The charge of this version of the network: before it nothing is drawn."""
        own = KIND, dataset, self._request
        if paid is not None and (paid.kind, paid.dataset, paid.request_sha256) == own:
            return paid
        for spend in self._paid(Ledger.open(inputs.state, create=False).find(KIND, dataset)):
            if spend.dataset == dataset:
                return spend
        raise PrivacyError(
            f"twin '{self.section.id}' of this network is not paid for; run the release", code="twin-changed"
        )

    def _drawn(self, state: PrivateState, account: str, twin: str | None = None) -> Drawn | None:
        """What was drawn in any version; None if unknown."""
        name, twin = _figures_file(account), twin or self.section.id
        stored = state.read_internal(f"{_PREFIX}{twin}", name)
        try:
            found: Drawn | None = None if stored is None else json.loads(stored)
            records = [each for figures in (found or {}).values() for each in figures.values()]
            if not all(each.keys() == {"positions", "codes"} for each in records):
                raise ValueError
        except (ValueError, AttributeError, RecursionError):
            raise PrivacyError(
                f"{name} of twin '{twin}' in the private state is damaged; restore it from a backup; "
                "nothing was spent",
                code="twin-damaged",
            ) from None
        return found

    def _remember(self, inputs: NetworkInputs, account: str, twin: draw.Twin) -> None:
        drawn = self._drawn(inputs.state, account) or {}
        figures = self._figures(inputs, self._key(inputs.state, account))
        for element in draw.elements_of(self._parameters(inputs), self.section.design):
            known = drawn.setdefault(element.name, {})
            if not self._seals(inputs.state):
                known[figures[element.name]] = twin.record_of(element)
        content = json.dumps(drawn, sort_keys=True).encode()
        inputs.state.write_internal(self.kept_under, _figures_file(account), content)

    def _kept(self, inputs: NetworkInputs, dataset: str) -> draw.Twin | None:
        stored = inputs.state.read_internal(self.kept_under, _file(dataset))
        twin = None if stored is None else draw.Twin.from_json(stored.decode(errors="replace"))
        if twin is not None and twin.design != self.section.design:
            raise PrivacyError(
                f"the kept twin '{self.section.id}' has another design than the config; restore it, or "
                "choose a new twin id",
                code="twin-changed",
            )
        return twin

    def _with_taps(self, feeder: Feeder) -> Feeder:
        """The twin; refused where taps are frozen and none were found to freeze."""
        if feeder.taps_from == TAPS_NOT_FOUND and not self.solver(1).acts:
            raise PowerFlowError(
                "OpenDSS finds no taps of the twin at nominal load; declare taps in a tap file, or let "
                "controls act (network.controls)"
            )
        return feeder

    def _built(self, inputs: NetworkInputs, twin: draw.Twin) -> base.Solvable:
        feeder = self._with_taps(twin.feeder(self._source(inputs)))
        identity = hashlib.sha256(twin.to_json().encode()).hexdigest()
        absent = twin.absent if self.section.protect == "if present" else None
        return base.Solvable(feeder, inputs.solar_on(feeder), identity, absent)


_PREFIX, _FIGURES = "twin-", "figures-"
"""Of the folder of a twin in the private state, and of its files of figures."""
_TWIN_FILE = re.compile(r"twin-[0-9a-f]{16}\.json")


def _figures_file(account: str) -> str:
    return f"{_FIGURES}{account}.json"


Drawn = dict[str, dict[str, draw.Record]]
"""Element → keyed hash of figures → what was drawn of them; no figures where they are sealed."""


def _sealed(drawn: Drawn) -> bool:
    return not all(drawn.values())


def _product(dataset: str) -> str:
    return f"twin-{dataset[:16]}"


def _file(dataset: str) -> str:
    return f"{_product(dataset)}.json"


def _whole(cost: Cost) -> bool:
    """Whether a cost is for a whole twin; a version without new figures costs nothing."""
    free = not any(cost.amounts().values())
    return isinstance(cost, PureCost | GdpCost) and cost.scope.all_elements and not free


def _joined(account: Account) -> frozenset[str]:
    """Elements that have a past in common with others, by the charges of an account."""
    costs = (spend.cost for spend in account.spends)
    return frozenset(n for cost in costs if isinstance(cost, PureCost | GdpCost) for n in cost.scope.joined)


def _parts_again(account: Account, now: Mapping[str, str]) -> draw.Changes:
    """What is drawn again of elements with a common past, where nothing that was drawn plays a part."""
    joined = _joined(account)
    return draw.Changes.between({}, {name: text for name, text in now.items() if name in joined}, joined)


def _named(ledger: Ledger, name: str | None) -> Account | None:
    account = None if name is None else ledger.named(name)
    return account if account is not None and account.kind is KIND else None


Places = Mapping[str, tuple[float, float]]
"""Bus, as the feeder names it → x and y."""


def released_connections(
    feeder: Feeder, released: IntArray, key: StreamKey, places: Places | None = None
) -> Connections:
    """Buses of the network that is solved, the phases of the released nodes, and what joins the buses.

    Buses come in the order of the released nodes, which is secret and random; the others follow in another
    random order. So nothing of the order in the feeder's file is left.

    Parameters
    ----------
    feeder : the twin.
    released : indices of the released nodes in `feeder.nodes`, in their secret order.
    key : of the draws of the release.
    places : coordinates of every bus that are declared public; None publishes none.
    """
    graph = BusGraph.of(feeder)
    order = _order(graph, released, key)
    row = np.empty(len(order), dtype=np.int64)
    row[order] = np.arange(len(order))
    pairs = sorted((*sorted(row[[*ends]].tolist()), kind) for ends, kind in graph.kind_of.items())
    at = None if places is None else np.array([places[graph.names[bus]] for bus in order], dtype=np.float64)
    return Connections(
        bus_ids=opaque_buses(len(order)),
        bus_of=row[graph.bus_of[released]],
        phase=graph.phase[released],
        pairs=np.array([pair[:2] for pair in pairs], dtype=np.int64).reshape(-1, 2),
        kinds=tuple(str(pair[2]) for pair in pairs),
        source=graph.source[order],
        coordinates=at,
    )


def public_places(structure: Feeder, coordinates: Places) -> Places:
    """Coordinates of every bus of a network, by its name.

    Parameters
    ----------
    structure : has the buses of the network that is solved.
    coordinates : of the feeder's file; a source may be in it as "emf(bus)".

    Raises
    ------
    ConfigError : the file has none that can be for some bus.
    """
    names = BusGraph.of(structure).names
    found = {name: coordinates.get(name, coordinates.get(f"emf({name})")) for name in names}
    known = {
        name: place for name, place in found.items() if place and all(abs(at) <= MOST_PLACE for at in place)
    }
    if len(known) < len(names):
        raise ConfigError(
            f"the feeder's file has no coordinates for {len(names) - len(known)} of its {len(names)} buses; "
            'add them, or set network.coordinates = "private"'
        )
    return known


def _order(graph: BusGraph, released: IntArray, key: StreamKey) -> IntArray:
    """Buses in the order in which they are published."""
    with_nodes = list(dict.fromkeys(graph.bus_of[released].tolist()))
    others = np.setdiff1d(np.arange(len(graph.names)), with_nodes)
    shuffled = others[key.stream("order of the buses").generator.permutation(len(others))]
    return np.array([*with_nodes, *shuffled.tolist()], dtype=np.int64)
