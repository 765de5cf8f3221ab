"""Accounts and ledgers: nobody gets past a cap, makes a ledger forget, or pays too little for a twin."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dp_powerflow.cli import app
from dp_powerflow.config import Config, parse_config
from dp_powerflow.errors import PrivacyError
from dp_powerflow.fleet.verify import hear_witnesses
from dp_powerflow.manifest.build import make_statement
from dp_powerflow.manifest.model import ReleaseError
from dp_powerflow.manifest.twin import charged_as
from dp_powerflow.pipeline.inputs import NetworkInputs, frame_chunks, read_network
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.pipeline.plan import keep_receipt, make_ready, open_ledger
from dp_powerflow.pipeline.release import charge, fitted_model
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import PureCost, Scope, TwinCap
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Spend
from dp_powerflow.privacy.state import PrivateState
from dp_powerflow.twin.draw import elements_of
from support import ledgers
from support.fleet_small import circuit
from support.forgery import Forger
from support.manifest_releases import config as release_config
from support.manifest_releases import load_model, make_inputs, make_release, twin_config, write_release
from support.small import RAW, small_config
from support.tiny_feeder import two_lines

CAP = TwinCap(2.0, 0.0, Neighbours("one line, length changed by a factor up to 1.05"))
ONE = PureCost(1.0, CAP.unit)
REQUEST = "a" * 64


@pytest.fixture
def state(tmp_path: Path) -> PrivateState:
    state = PrivateState.open(tmp_path / "state")
    Ledger.open(state)
    return state


def restore(backup: dict[Path, bytes]) -> None:
    """Put ledger and anchor back."""
    for path, content in backup.items():
        path.write_bytes(content)


def backup_of(state: PrivateState) -> dict[Path, bytes]:
    """Ledger and anchor as they are now."""
    return {path: path.read_bytes() for path in (state.ledger_path, state.anchor_path)}


def begin(config: Config) -> PrivateState:
    """A release up to where its data have been used."""
    state = PrivateState.open(config.release.state, insecure_seed=7)
    ready = make_ready(config, state)
    inputs, (plan, _) = ready.inputs, charge(ready)
    fitted_model(config, state, inputs.readings, plan, inputs.almanac)
    return state


def test_an_old_ledger_with_its_old_anchor_is_found_by_the_files_of_later_releases(tmp_path: Path) -> None:
    """Before: both were put back, everything fitted, and the release was charged a second time."""
    config = small_config(tmp_path)
    state = PrivateState.open(config.release.state, insecure_seed=7)
    Ledger.open(state)
    backup = backup_of(state)
    begin(config)
    open_ledger(state)
    restore(backup)
    with pytest.raises(PrivacyError, match=r"lacks a charge of release 'small' \(entry \d, which paid"):
        open_ledger(state)
    with pytest.raises(PrivacyError, match=r"lacks a charge of release 'small'.*nothing was spent"):
        begin(small_config(tmp_path, release={"id": "again"}))
    for path in backup:  # a fresh ledger is no better
        path.unlink()
    with pytest.raises(PrivacyError, match="lacks a charge of release 'small'"):
        open_ledger(state)
    for receipt in (state.root / "internal" / "small").glob("paid-*.json"):
        receipt.unlink()  # as versions before 0.3 left it
    with pytest.raises(PrivacyError, match="the one that paid for its load model"):
        open_ledger(state)
    kept = state.root / "internal" / "twin-north"
    kept.mkdir(mode=0o700)
    (kept / f"twin-{'0' * 16}.json").touch(0o600)
    shutil.rmtree(state.root / "internal" / "small")
    with pytest.raises(PrivacyError, match=r"charge of release 'north' \(the one that paid for the twin\)"):
        open_ledger(state)


def test_a_later_version_of_a_twin_has_its_charge(state: PrivateState) -> None:
    ledger, dataset = Ledger.open(state), state.identity("network", [b"feeder, a line replaced"])
    later = ledgers.account(ledger, dataset, CAP)
    state.write_internal("twin-north", f"twin-{dataset[:16]}.json", b"{}")
    with pytest.raises(PrivacyError, match="the one that paid for the twin"):
        open_ledger(state)
    ledgers.spend(ledger, later, charged_as("north", 2), REQUEST, ONE)
    open_ledger(state)


def test_another_charge_in_the_place_of_a_lost_one_is_found(state: PrivateState) -> None:
    """The ledger was put back and went on: it is as long as before, with another charge."""
    ledger = Ledger.open(state)
    own = ledgers.account(ledger, state.identity("network", [b"feeder"]), CAP)
    backup = backup_of(state)
    lost = ledgers.spend(ledger, own, "one", REQUEST, ONE)
    keep_receipt(state, "one", lost)
    open_ledger(state)
    restore(backup)
    assert ledgers.spend(Ledger.open(state), own, "other", REQUEST, ONE).entry == lost.entry
    with pytest.raises(PrivacyError, match="lacks a charge of release 'one'"):
        open_ledger(state)
    state.write_internal("one", f"paid-{lost.entry}.json", b"{")
    with pytest.raises(PrivacyError, match="is damaged"):
        open_ledger(state)


def test_a_whole_directory_put_back_is_found_by_earlier_releases(tmp_path: Path) -> None:
    """Before: nothing could tell. Now nothing *inside* can, and every release outside is a witness."""
    inputs, state = make_inputs(tmp_path, release_config(), load_model())
    first = write_release(tmp_path / "first", inputs)
    shutil.copytree(state.root, tmp_path / "backup")
    second_config = release_config(release={"id": "r-2"})
    ledger = Ledger.open(state)
    inputs, state = make_inputs(tmp_path, second_config, load_model())
    second = write_release(tmp_path / "second", inputs)
    fleet = tmp_path / "fleet"
    shutil.copytree(second, fleet / "feeder=north")
    (fleet / "fleet.json").write_text(json.dumps({"feeders": [{"name": "north"}]}))
    assert ledger.summary().accounts
    for places in ([first], [first, second], [fleet, first]):
        heard = hear_witnesses(state.root, map(str, places))
        assert heard.contradictions == ()
        assert heard.releases == len(places)
    runner, command = CliRunner(), ["ledger", str(state.root), "--witness"]
    said = runner.invoke(app, [*command, str(first), str(second)])
    assert said.exit_code == 0
    assert "every charge that 2 earlier releases state" in said.output
    shutil.rmtree(state.root)
    shutil.copytree(tmp_path / "backup", state.root)
    open_ledger(state)  # it cannot be told from inside
    for place in (second, fleet):
        heard = hear_witnesses(state.root, [str(first), str(place)])
        assert [sentence[:50] for sentence in heard.contradictions] == [
            "The ledger lacks the charge of release 'r-2' to th"
        ] * 2
    said = runner.invoke(app, [*command, str(first), str(second)])
    assert said.exit_code == 1
    assert "older copy" in said.output
    # The budget is used a second time, under another name: the witness still says so.
    make_inputs(tmp_path, release_config(release={"id": "r-3"}), load_model())
    assert len(hear_witnesses(state.root, [str(second)]).contradictions) == 2
    # Or under the same name, for another price.
    shutil.rmtree(state.root)
    shutil.copytree(tmp_path / "backup", state.root)
    cheaper = release_config(release={"id": "r-2"}, network={"epsilon": 1.0})
    make_inputs(tmp_path, cheaper, load_model())
    [sentence] = hear_witnesses(state.root, [str(second)]).contradictions
    assert "disagrees with release 'r-2' on what had been spent on the network" in sentence


def test_the_witness_of_another_model_or_report_is_heard(tmp_path: Path) -> None:
    """The same id and the same price after the rollback, and other data."""
    inputs, state = make_inputs(tmp_path, release_config(), load_model())
    first = write_release(tmp_path / "first", inputs)
    state.write_internal("r-1", "model.json", inputs.model.to_json().encode())
    assert hear_witnesses(state.root, [str(first)]).contradictions == ()
    state.write_internal("r-1", "model.json", load_model(classes=2).to_json().encode())
    state.write_internal("r-1", "report.json", b"{}")
    lacks, report = hear_witnesses(state.root, [str(first)]).contradictions
    assert lacks.startswith("The ledger lacks the charge of release 'r-1' to the customers")
    assert report.startswith("Release 'r-1' commits to another internal report")


def test_a_witness_must_be_a_release(tmp_path: Path, state: PrivateState) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    said = CliRunner().invoke(app, ["ledger", str(state.root), "--witness", str(tmp_path)])
    assert isinstance(said.exception, ReleaseError)
    for arguments in (["--witness"], [str(tmp_path)]):
        said = CliRunner().invoke(app, ["ledger", str(state.root), *arguments])
        assert "with --witness" in said.output + str(said.exception)


LINE = "phases=3 r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=8 c0=3 units=km"
THIRD = f"New Line.third bus1=b bus2=c {LINE} length=0.7\n"


def extended(text: str, more: str) -> str:
    return text.replace("Set VoltageBases", f"{more}Set VoltageBases")


class Owner:
    """A data owner who draws twins of versions of one network, without load models and files."""

    def __init__(self, folder: Path, seed: int | None = 7) -> None:
        self.folder = folder
        self.state = PrivateState.open(folder / "state", insecure_seed=seed)

    def config(self, text: str, twin: str = "t1", **sections: dict[str, Any]) -> Config:
        (self.folder / "feeder.dss").write_text(text)
        network = {"mode": "twin-network", "id": twin, "epsilon": 1.0, **sections.get("network", {})}
        release = {**RAW["release"], "network_epsilon_cap": 12.0, **sections.get("release", {})}
        if Ledger.open(self.state).spends():
            release["continues_network"] = "network-twin-1"
        raw = {**RAW, "nodes": {}, "feeder": {"source": "feeder.dss"}, "network": network, "release": release}
        return parse_config(raw, base=self.folder)

    def pay(self, config: Config) -> tuple[NetworkInputs, Spend]:
        """Charge a version of the network as a release would, and go no further."""
        inputs, mode, ledger = read_network(config, self.state, 24), mode_of(config), Ledger.open(self.state)
        asked = mode.charge_of(mode.charge("0" * 64), mode.facts(inputs), self.state, ledger)
        mode.make_keys(self.state, mode.identity(inputs))
        account = ledgers.account(
            ledger, mode.identity(inputs), asked.cap, continues=config.release.continues_network
        )
        return inputs, ledgers.spend(ledger, account, asked.paid_by, asked.request_sha256, asked.cost)

    def draw(self, text: str, twin: str = "t1") -> Scope:
        """Pay and draw; whom the charge was for."""
        config = self.config(text, twin)
        inputs, spend = self.pay(config)
        mode_of(config).network_to_solve(inputs, spend.dataset)
        assert isinstance(spend.cost, PureCost)
        return spend.cost.scope

    @property
    def spent(self) -> float:
        return Ledger.open(self.state).summary().accounts[0].balance.spent["epsilon"]


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def test_renaming_lines_buys_no_second_draw_for_nothing(owner: Owner) -> None:
    """Every renamed line was "added": ten exports with other names were ten draws for epsilon = 1."""
    for number, name in enumerate(("first", "eins", "un"), start=1):
        owner.draw(circuit(1.0).replace("Line.first", f"Line.{name}"))
        assert owner.spent == pytest.approx(number)


def test_a_line_renamed_in_two_steps_is_charged_for_what_was_drawn_before(owner: Owner) -> None:
    """First it is gone, which costs nothing; then it comes back under another name."""
    text = extended(circuit(1.0), THIRD)
    owner.draw(text)
    assert owner.draw(circuit(1.0)) == Scope()
    assert owner.spent == pytest.approx(1.0)
    renamed = owner.draw(text.replace("Line.third", "Line.other"))
    assert renamed == Scope(joined=("line other", "line third"))
    assert owner.spent == pytest.approx(2.0)


def test_a_line_that_is_added_costs_itself_alone(owner: Owner) -> None:
    owner.draw(circuit(1.0))
    assert owner.draw(extended(circuit(1.0), THIRD)) == Scope(added=("line third",))
    assert owner.spent == pytest.approx(1.0)
    assert owner.draw(extended(circuit(1.0), THIRD.replace("0.7", "0.8"))) == Scope(replaced=("line third",))
    assert owner.spent == pytest.approx(2.0)
    owner.draw(extended(circuit(1.0), THIRD))  # as before, with the charge and the noise of before
    assert owner.spent == pytest.approx(2.0)


def test_a_version_of_a_sealed_twin_pays_whole_and_new_elements_are_refused(tmp_path: Path) -> None:
    """Hashes of single figures gave lines away; without them nobody knows what a new line is part of."""
    owner = Owner(tmp_path, seed=None)
    owner.draw(circuit(1.0))
    owner.draw(circuit(1.05))
    assert owner.spent == pytest.approx(2.0)
    for twin in ("t1", "t2"):
        with pytest.raises(PrivacyError, match="nobody knows what they cost"):
            owner.pay(owner.config(extended(circuit(1.0), THIRD), twin))
    owner.draw(circuit(1.1), "t2")
    assert owner.spent == pytest.approx(3.0)


def with_second(*lines: tuple[str, str, str, float]) -> str:
    """The circuit with other lines in place of the second."""
    text = circuit(1.0)
    start = text.index("New Line.second")
    kept = text[:start] + text[text.index("\n", start) + 1 :]
    made = (
        f"New Line.{name} bus1={one} bus2={other} {LINE} length={km!r}\n" for name, one, other, km in lines
    )
    return extended(kept, "".join(made))


def figures_of(owner: Owner, text: str) -> dict[str, dict[Any, int]]:
    config = owner.config(text)
    mode: Any = mode_of(config)
    inputs = read_network(config, owner.state, 24)
    found = elements_of(mode._parameters(inputs), mode.section.design)
    return {element.name: dict(element.positions) for element in found}


def worst_loss(owner: Owner, versions: list[Callable[[float], str]], km: float) -> float:
    """Largest log likelihood ratio of all that was drawn: one line has `km`, or 5 % more, in every version.

    An element is drawn anew where its figures are others; the noise of a pair has density exp(-max |n| / t).
    """
    (part,) = mode_of(owner.config(circuit(1.0))).section.design.parts.values()
    total, drawn = 0.0, set[tuple[str, frozenset[Any]]]()
    for version in versions:
        one, other = (figures_of(owner, version(length)) for length in (km, 1.05 * km))
        for name, positions in one.items():
            if (name, frozenset(positions.items())) not in drawn:
                drawn.add((name, frozenset(positions.items())))
                total += max(abs(positions[key] - other[name][key]) for key in positions) / part.scale
    return total


def whole(km: float) -> str:
    return with_second(("second", "a", "b", km))


def halved(km: float) -> str:
    return whole(km / 2)


def parts(*shares: float, first: str = "n1") -> Callable[[float], str]:
    """Split by taps into n1, n2, …, of so many kilometres for each of the line."""
    buses = [*("a", "t", "s", "u")[: len(shares)], "b"]
    names = [first, *(f"n{k}" for k in range(2, len(shares) + 1))]
    ends = list(zip(names, pairwise(buses), shares, strict=True))
    return lambda km: with_second(*((name, *pair, share * km) for name, pair, share in ends))


def doubled(km: float) -> str:
    return with_second(("n1", "a", "b", 0.9 * km), ("n2", "a", "b", 0.8 * km))


def tapped_again(km: float) -> str:
    return with_second(("n1", "a", "u", 0.2 * km), ("n3", "u", "t", 0.2 * km), ("n2", "t", "b", 0.6 * km))


def beside_another(km: float) -> str:
    return with_second(("n1", "a", "t", km), ("n2", "t", "b", 0.7))


tapped, in_three = parts(0.4, 0.6), parts(0.3, 0.4, 0.3)
SPLITS: dict[str, tuple[float, list[Callable[[float], str]]]] = {
    "replaced": (2.0, [whole, halved]),
    "split by a tap": (3.0, [whole, parts(0.4, 0.6, first="second")]),
    "split, both names new": (3.0, [whole, tapped]),
    "split in three": (4.0, [whole, in_three]),
    "doubled": (3.0, [whole, doubled]),
    "replaced, then split": (4.0, [whole, halved, tapped]),
    # The past of a split line stays with its parts.
    "replaced, split, then one part": (5.0, [whole, halved, tapped, parts(0.6, 0.6)]),
    "split, then both parts measured again": (5.0, [whole, tapped, parts(0.5, 0.5)]),
    "split, then one part after the other": (5.0, [whole, tapped, parts(0.5, 0.6), parts(0.5, 0.5)]),
    "split in three, then the ends": (6.0, [whole, in_three, parts(0.2, 0.4, 0.4)]),
    "split twice": (5.0, [whole, tapped, tapped_again]),
    "merged": (2.0, [beside_another, lambda km: whole(km + 0.7)]),
}


@pytest.mark.parametrize("kind", SPLITS)
def test_a_line_that_is_split_is_charged_as_often_as_its_figures_enter(owner: Owner, kind: str) -> None:
    """A tap splits a line: both parts and the line are seen, log likelihood ratio 3.0; the account said 2."""
    stated, versions = SPLITS[kind]
    for version in versions:
        owner.draw(version(1.5))
    assert owner.spent == pytest.approx(stated)
    assert worst_loss(owner, versions, 1.5) <= owner.spent


def test_a_twin_under_another_id_counts_a_line_that_was_split_since_the_first(owner: Owner) -> None:
    """The line in the first twin, both parts in the second: three times, as in two versions of one twin."""
    owner.draw(whole(1.5), "t1")
    owner.draw(tapped(1.5), "t2")
    assert owner.spent == pytest.approx(3.0)
    owner.draw(tapped(1.5), "t3")  # both parts once more
    assert owner.spent == pytest.approx(5.0)
    for figures in (owner.folder / "state/internal").glob("twin-*/figures-*"):
        figures.unlink()
    for text, twin in ((tapped(1.5), "t4"), (parts(0.5, 0.5)(1.5), "t1")):
        with pytest.raises(PrivacyError, match="is not known"):
            owner.pay(owner.config(text, twin))


def test_a_line_built_elsewhere_costs_itself_alone_though_another_was_replaced(owner: Owner) -> None:
    owner.draw(circuit(1.0))
    assert owner.draw(extended(circuit(1.1), THIRD)) == Scope(replaced=("line first",), added=("line third",))
    assert owner.spent == pytest.approx(2.0)


def test_no_version_follows_figures_that_were_forgotten(owner: Owner) -> None:
    """A line that left with them came back as a new one; parts of a split line paid twice for three times."""
    text = extended(circuit(1.0), THIRD)
    owner.draw(text)
    figures = owner.folder / "state/internal/twin-t1/figures-network-twin-1.json"
    kept = figures.rename(owner.folder / "kept")
    with pytest.raises(PrivacyError, match="is not known"):
        owner.pay(owner.config(circuit(1.0)))
    kept.rename(figures)
    config = owner.config(text.replace("0.7", "0.8"))
    inputs, spend = owner.pay(config)  # for one line
    figures.unlink()
    with pytest.raises(PrivacyError, match="nothing is drawn twice for one charge"):
        mode_of(config).network_to_solve(inputs, spend.dataset)
    figures.write_bytes(b"{")
    figures.chmod(0o600)
    with pytest.raises(PrivacyError, match="damaged"):
        owner.pay(owner.config(circuit(1.1)))


def test_no_version_follows_one_that_is_paid_for_and_can_still_be_drawn(owner: Owner) -> None:
    """Killed after its charge, it was gone on with once its line was charged as new under another name."""
    owner.draw(circuit(1.0))
    second = extended(circuit(1.0), THIRD)
    owner.pay(owner.config(second))
    with pytest.raises(PrivacyError, match="finish the release that paid for it"):
        owner.pay(owner.config(second.replace("Line.third", "Line.other")))
    owner.draw(second)
    assert owner.spent == pytest.approx(1.0)


def test_figures_are_remembered_before_the_twin_is_kept(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, a run that resumed found the twin and never remembered its figures."""
    config = owner.config(circuit(1.0))
    inputs, spend = owner.pay(config)
    write, names = PrivateState.write_internal, []

    def note(state: PrivateState, release_id: str, name: str, data: bytes) -> Path:
        names.append(name.partition("-")[0])
        return write(state, release_id, name, data)

    monkeypatch.setattr(PrivateState, "write_internal", note)
    mode_of(config).network_to_solve(inputs, spend.dataset)
    assert names == ["figures", "twin"]


def test_an_id_that_reads_like_a_version_of_another_twin_is_a_twin_of_its_own(owner: Owner) -> None:
    """It blocked both: the later versions of the one, and the other where it came second."""
    owner.draw(circuit(1.0), "t1_version-2")
    assert owner.draw(circuit(1.0), "t1") == Scope()
    assert owner.draw(circuit(1.1), "t1") == Scope(replaced=("line first",))
    spends = Ledger.open(owner.state).spends()
    assert [spend.release_id for spend in spends] == ["t1_version-2", "t1", "t1_version-3"]
    assert owner.spent == pytest.approx(3.0)


def test_a_laplace_twin_outlives_a_gaussian_one_in_its_account(owner: Owner) -> None:
    """Gaussian noise needs a cap with a delta; under that cap the twin that was paid for was refused."""
    owner.draw(circuit(1.0))
    Ledger.open(owner.state).change_figures("network-twin-1", None, 1e-6, "a Gaussian twin as well")
    gaussian = {"noise": "gaussian", "delta": 1e-6}
    owner.pay(owner.config(circuit(1.0), "t2", network=gaussian))
    spent = owner.spent
    _, again = owner.pay(owner.config(circuit(1.0), release={"network_delta_cap": 1e-6}))
    assert again.release_id == "t1"
    assert owner.spent == spent


def test_no_account_of_twins_is_stated_at_a_delta_that_no_twin_may_have(owner: Owner, forger: Forger) -> None:
    """A Laplace twin beside a Gaussian one took its delta from the cap: epsilon = 0 at delta = 0.9."""
    with pytest.raises(PrivacyError, match=r"delta of a twin must be below 0\.01"):
        owner.pay(owner.config(circuit(1.0), release={"network_delta_cap": 0.9}))
    facts = forger.opened.readable()[1]
    spent = facts.network.spent.model_copy(update={"mu_squared": 0.01})
    for delta, found in ((1e-6, set()), (0.9, {"statement"})):
        promise = facts.network.promise.model_copy(update={"delta": delta})
        account = facts.network.model_copy(update={"spent": spent, "promise": promise})
        assert forger.found_of(replace(facts, network=account)) == found


def test_an_account_holds_at_least_the_twin_and_more_is_for_the_ledger_to_tell(forger: Forger) -> None:
    """Earlier charges are attested: more of them promise less, and `verify --private` compares them."""
    facts = forger.opened.readable()[1]
    pure = facts.network.spent.pure_epsilons
    for stated, found in ((pure * 2, set()), ([pure[0] / 2] * 4, {"statement"}), ([], {"statement"})):
        spent = facts.network.spent.model_copy(update={"pure_epsilons": stated})
        account = facts.network.model_copy(update={"spent": spent})
        assert forger.found_of(replace(facts, network=account)) == found


def test_a_twin_is_not_drawn_on_the_charge_of_another(owner: Owner) -> None:
    """The charge of twin 't1_version-2' counted as that of 't1'."""
    owner.draw(circuit(1.0), "t1_version-2")
    config = owner.config(circuit(1.0), "t1")
    inputs = read_network(config, owner.state, 24)
    mode = mode_of(config)
    with pytest.raises(PrivacyError, match="not paid for"):
        mode.network_to_solve(inputs, mode.identity(inputs))


def test_a_copy_that_is_a_little_off_symmetry_has_the_frame_of_the_original() -> None:
    """Phases of a line that are not coupled, and phases coupled by 1e-9, were two structures: two budgets."""

    def frame(r0: float) -> bytes:
        own = (
            f"New Line.own phases=3 bus1=a bus2=b r1=0.3 x1=0.6 r0={r0!r} x0=0.6 c1=8 c0=8 length=2 units=km"
        )
        return b"".join(frame_chunks(two_lines(own=own)))

    assert frame(0.3) == frame(0.3 * (1 + 1e-9)) == frame(0.9)


@pytest.fixture(scope="module")
def forger(tmp_path_factory: pytest.TempPathFactory) -> Forger:
    return Forger.of(make_release(tmp_path_factory.mktemp("made"), twin_config()).path)


def test_a_gaussian_twin_is_stated_at_the_delta_of_its_account(tmp_path: Path) -> None:
    chosen = twin_config(network={"noise": "gaussian", "delta": 1e-6})
    inputs, _ = make_inputs(tmp_path, chosen, load_model())
    make_statement(inputs)
    cap = replace(inputs.network.cap, delta=1e-5)
    with pytest.raises(ReleaseError, match="another delta"):
        make_statement(replace(inputs, network=replace(inputs.network, cap=cap)))
