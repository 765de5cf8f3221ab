"""Hole 12: near copies of one feeder. Before 0.3, 24 files that differ by 1e-9 got 24 full budgets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dp_powerflow.errors import PrivacyError
from dp_powerflow.fleet.feeders import feeders_of, write_register
from dp_powerflow.fleet.run import plan_fleet
from dp_powerflow.grid.feeder import Feeder
from dp_powerflow.grid.sources import open_feeder
from dp_powerflow.pipeline.inputs import frame_chunks, read_network
from dp_powerflow.pipeline.modes.base import mode_of
from dp_powerflow.privacy.budget import Neighbours
from dp_powerflow.privacy.ledger.accounts import InstanceCap
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Unrelated
from dp_powerflow.privacy.state import PrivateState
from support import ledgers
from support.fleet_small import circuit, fleet_config
from support.here import Here

CAP = InstanceCap(2.0, 0.0, Neighbours("one line, admittance scaled by up to 1 %"))
LINE = re.compile(r"New Line\.second.*\n")


def frame(feeder: Feeder) -> bytes:
    return b"".join(frame_chunks(feeder))


def open_accounts(folder: Path, **fleet: Any) -> list[str]:
    """Account of every feeder of a fleet, opened and charged as its release would, or why it is not."""
    config = fleet_config(folder, fleet={"same_frame": None, **fleet})
    state = PrivateState.open(config.fleet.state, insecure_seed=7)
    ledger, found = Ledger.open(state), []
    feeders = feeders_of(config, state, ledger)
    write_register(state, config.fleet.id, feeders)
    for feeder in feeders:
        inputs, mode = read_network(feeder.config, state, 24), mode_of(feeder.config)
        facts = mode.facts(inputs)
        asked, release = mode.charge("0" * 64), feeder.config.release
        try:
            account = ledgers.account(
                ledger,
                facts.dataset,
                asked.cap,
                continues=release.continues_network,
                unrelated=release.unrelated_network,
                frame=facts.frame,
            )
        except PrivacyError as error:
            found.append(str(error))
        else:
            ledgers.spend(ledger, account, asked.paid_by, asked.request_sha256, asked.cost)
            found.append(account.name)
    return found


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Eight near copies, half of them with other names of buses, and a feeder of another structure."""
    (tmp_path / "feeders").mkdir()
    for number in range(8):
        text = circuit(1.0 + 1e-9 * number)
        if number % 2:
            text = text.replace("bus2=a", f"bus2=x{number}").replace("bus1=a", f"bus1=x{number}")
        (tmp_path / "feeders" / f"copy-{number}.dss").write_text(text)
    stump = LINE.sub("", circuit(1.0)).replace("New Load.lb bus1=b", "New Load.lb bus1=a")
    (tmp_path / "feeders" / "stump.dss").write_text(stump)
    return tmp_path


def test_near_copies_in_a_fleet_get_one_budget(copies: Path) -> None:
    found = open_accounts(copies)
    opened = [name for name in found if name.startswith("network-instance-")]
    refused = [name for name in found if "has the nodes and connections of account" in name]
    assert len(opened) == 2
    assert len(refused) == 7
    assert all("fleet.same_frame" in sentence and "nothing was spent" in sentence for sentence in refused)
    assert sorted(open_accounts(copies)) == sorted(found), "nor do they in a second run"


@pytest.mark.parametrize(("public", "opened"), [("zz", 4), ("aa", 2)])
def test_only_feeders_that_are_named_are_different_networks(copies: Path, public: str, opened: int) -> None:
    """A fifth copy, which nobody named, comes last and gets none, or first and then the others get none."""
    for number in range(4, 8):
        (copies / "feeders" / f"copy-{number}.dss").unlink()
    named: dict[str, Any] = {"feeders": ["copy-0", "copy-1", "copy-2"], "reason": "a standard design"}
    found = open_accounts(copies, same_frame=named, names={"copy-3": public})
    assert sum(name.startswith("network-instance-") for name in found) == opened
    accounts = Ledger.inspect(copies / "state").summary().accounts
    reasons = [item.changes[0].reason for item in accounts]
    same = "another feeder of fleet 'north'; same frame: a standard design"
    assert reasons.count(same) == (3 if opened == 4 else 0)
    # What is named later counts for an account that is there.
    named["feeders"] = [f"copy-{number}" for number in range(4)]
    found = open_accounts(copies, same_frame=named, names={"copy-3": public})
    assert sum(name.startswith("network-instance-") for name in found) == 5


def test_the_plan_of_a_fleet_says_what_to_write(copies: Path) -> None:
    for number in range(2, 8):
        (copies / "feeders" / f"copy-{number}.dss").unlink()
    plans = plan_fleet(fleet_config(copies, fleet={"same_frame": None}), engine=Here()).feeders
    [problem] = [plan.problem for plan in plans if plan.problem is not None]
    wanted = 'same_frame = { feeders = ["copy-0", "copy-1"], reason = "<why>" }'
    assert problem.endswith(wanted)
    named = {"feeders": ["copy-0", "copy-1"], "reason": "a standard design"}
    plans = plan_fleet(fleet_config(copies, fleet={"same_frame": named}), engine=Here()).feeders
    assert [plan.problem for plan in plans] == [None] * 3


def test_a_reason_of_the_list_does_not_explain_the_same_frame_and_one_by_name_does(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    first, second, third = (state.identity("network", [name]) for name in (b"1", b"2", b"3"))
    shape, other = "f" * 64, "e" * 64
    opened = ledgers.account(
        ledger, first, CAP, frame=shape, unrelated=Unrelated(frozenset(), "first", "north")
    )
    names = frozenset({opened.name})
    listed = Unrelated(names, "another feeder", "north", listed=names)
    with pytest.raises(PrivacyError, match=f"connections of account {opened.name}"):
        ledgers.account(ledger, second, CAP, frame=shape, unrelated=listed)
    with pytest.raises(PrivacyError, match=r"\(network-instance-1 with the same nodes and connections\)"):
        ledgers.account(ledger, second, CAP, frame=shape)
    assert ledgers.account(ledger, second, CAP, frame=other, unrelated=listed).name == "network-instance-2"
    named = Unrelated.to(["network-instance-1", "network-instance-2"], "another valley")
    assert ledgers.account(ledger, third, CAP, frame=shape, unrelated=named).name == "network-instance-3"
    fourth = ledgers.account(
        ledger, state.identity("network", [b"4"]), CAP, frame=shape, continues=opened.name
    )
    assert fourth.name == opened.name
    assert Ledger.open(state).summary() == ledger.summary()


def test_an_account_of_an_earlier_version_learns_its_frame_when_it_is_used(tmp_path: Path) -> None:
    state = PrivateState.open(tmp_path / "state")
    ledger = Ledger.open(state)
    dataset = state.identity("network", [b"1"])
    ledgers.account(ledger, dataset, CAP, unrelated=Unrelated(frozenset(), "first", "north"))
    entries = ledger.summary().entries
    for _ in range(2):
        ledgers.account(ledger, dataset, CAP, frame="f" * 64)
        assert ledger.summary().entries == entries + 1
    with pytest.raises(PrivacyError, match="has the nodes and connections"):
        ledgers.account(
            ledger,
            state.identity("network", [b"2"]),
            CAP,
            frame="f" * 64,
            unrelated=Unrelated(frozenset(), "second", "north"),
        )


def test_the_frame_knows_structure_and_nothing_else() -> None:
    """Names, order, impedances and loads do not count; a node, a connection or a voltage level does."""
    feeder = open_feeder("ieee13")
    rng = np.random.default_rng(3)
    order = rng.permutation(len(feeder.nodes))
    place = np.argsort(order)
    noisy = feeder.y.copy()
    noisy.data = noisy.data * (1 + 1e-9 * rng.normal(size=noisy.data.shape))
    shuffled = replace(
        feeder,
        nodes=tuple(f"n{k}" for k in range(len(feeder.nodes))),
        base_kv=feeder.base_kv[order],
        y=noisy[order][:, order].tocsc(),
        lines=tuple(replace(line, nodes=tuple(map(int, place[list(line.nodes)]))) for line in feeder.lines),
        slack=np.sort(place[feeder.slack]),
    )
    assert frame(shuffled) == frame(feeder)
    kv = feeder.base_kv.copy()
    kv[3] *= 2.0
    assert frame(replace(feeder, base_kv=kv)) != frame(feeder)
    cut, line = feeder.y.tolil(), feeder.lines[4]
    one, other = line.nodes[0], line.nodes[-1]
    cut[one, other] = cut[other, one] = 0.0
    rest = tuple(item for item in feeder.lines if item is not line)
    assert frame(replace(feeder, y=cut.tocsc(), lines=rest)) != frame(feeder)
    assert frame(open_feeder("ieee123")) != frame(feeder)


def test_frames_of_ten_thousand_nodes_are_told_apart() -> None:
    """A line of nodes with a branch one node further on is another frame, far from both ends."""
    assert len({frame(_chain_with_branch(10_000, at)) for at in (5, 3_000, 3_001)}) == 3


def _chain_with_branch(count: int, at: int) -> Feeder:
    ends = [(k, k + 1) for k in range(count - 2)] + [(at, count - 1)]
    rows = np.array([*ends, *(pair[::-1] for pair in ends)])
    y = sp.csc_array((np.ones(len(rows)), (rows[:, 0], rows[:, 1])), shape=(count, count))
    small = open_feeder("ieee13")
    return replace(
        small,
        nodes=tuple(map(str, range(count))),
        base_kv=np.full(count, 7.2),
        y=y.astype(complex),
        slack=np.array([0]),
    )
