"""`verify --private`: what an auditor opens and makes again from the private inputs. PRIVATE, INTERNAL.

Apart from `verify`, which a stranger runs and which therefore sees no code that reads meters.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dp_powerflow.config import Config
from dp_powerflow.corpus.schema import part_name
from dp_powerflow.corpus.storage import Location, RemotePath, loading, open_parquet
from dp_powerflow.errors import DpPowerflowError
from dp_powerflow.manifest import verify
from dp_powerflow.manifest.build import Facts, account_of
from dp_powerflow.manifest.model import MODEL_FILE, Check, check, sha256_of
from dp_powerflow.model.gaussian import LoadModel
from dp_powerflow.model.sample import OneDay, solve_days
from dp_powerflow.pipeline.inputs import NetworkInputs, network_again
from dp_powerflow.pipeline.modes.base import NetworkMode, Scene, mode_of
from dp_powerflow.pipeline.parts import part_extras, part_voltages
from dp_powerflow.pipeline.plan import COMMITMENT, REPORT_FILE, writer_of
from dp_powerflow.pipeline.release import draw_key, part_job, released_order
from dp_powerflow.powerflow.batch import Nodes
from dp_powerflow.privacy.ledger.accounts import AccountKind, Balance
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Account
from dp_powerflow.privacy.state import KEY_ENDING, PrivateState


def other_parts(path: Location, mode: NetworkMode[Any], inputs: NetworkInputs, scene: Scene) -> Iterator[str]:
    """Names of files with a part whose loads or voltages key, network and load model do not give.

    One day of every part is drawn and solved again; which one, the manifest decides.
    """
    writer = writer_of(mode, scene.network.feeder, scene.network.solar, scene.model.n_steps)
    key = draw_key(inputs, scene)
    order = released_order(inputs.state, writer.release_id, key, writer.layout.nodes)
    job = part_job(mode, scene, key, writer, order)
    solver = job.solver(job.feeder, job.solar, None)
    source = OneDay(job.source, int(sha256_of(verify.manifest_content(path))[:8], 16))
    nodes: Nodes = "all" if job.solves_all else "retained"
    one = replace(job, writer=replace(writer, layout=replace(writer.layout, days=1, days_per_part=1)))
    for part in range(writer.layout.n_parts):
        made = solve_days(
            solver, source, part, generation=job.solar.generation, nodes=nodes, scale_down=job.scales_down
        )
        files = one.writer.encoded(0, part_voltages(one, made), part_extras(one, solver, made))
        for name, content in files.items():
            folder, day = name.rpartition("/")[0], made.first_day - writer.layout.days_of(part).start
            if not _holds(path / folder / part_name(part), content, day):
                yield f"{folder}/{part_name(part)}"


def _holds(place: Location, content: memoryview, day: int) -> bool:
    """Whether a file of a part has these rows of a day."""
    try:
        with open_parquet(place) as there, open_parquet(pa.BufferReader(content)) as made:
            rows = made.read().drop_columns("day")
            found = there.read(rows.column_names).slice(day * len(rows), len(rows))
    except (OSError, pa.ArrowException, ValueError, KeyError):
        return False
    return all(found[name].equals(rows[name]) for name in rows.column_names)


def verify_private(
    path: str | os.PathLike[str] | RemotePath,
    state_path: str | os.PathLike[str],
    config: Config | None = None,
) -> verify.VerifyReport:
    """Everything `verify_release` checks, then the commitment, the ledger and the evidence. INTERNAL.

    Parameters
    ----------
    state_path : private state directory of the data owner.
    config : of the release: report, twin and some days are made again by the code that makes releases;
        without it they are opened and not recomputed.

    Raises
    ------
    DpPowerflowError : there is no release or no private state directory, or an input cannot be read.
    """
    place = path if isinstance(path, RemotePath) else Path(path)
    content, state = verify.manifest_content(place), PrivateState.inspect(Path(state_path))
    again = None if config is None else _made_again(place, config, state)
    try:
        opened = verify.open_release(place, content)
        report, facts = verify.check_release(opened), opened.facts
    except (ValueError, RecursionError):
        return verify.no_manifest(content)
    try:
        stored = None if facts is None else state.read_internal(facts.release_id, REPORT_FILE)
    except DpPowerflowError:
        facts = None
    if facts is None:
        unknown = Check("commitment", False, "The manifest names no release of this private state directory.")
        return replace(report, checks=(*report.checks, unknown))
    checks = [
        _check_commitment(state, facts, stored),
        _check_ledger(state, opened, facts),
        check("keys", _keys_left(state, facts), "No key is left of what is said to be sealed."),
    ]
    return replace(report, checks=(*report.checks, *checks, *(() if again is None else again(stored))))


def _made_again(
    path: Location, config: Config, state: PrivateState
) -> Callable[[bytes | None], Iterator[Check]]:
    """Given the report that is kept: whether report, twin and days are those that key and network give."""
    mode = mode_of(config)
    with loading(path / MODEL_FILE):
        model = LoadModel.from_json((path / MODEL_FILE).read_bytes().decode(errors="replace"))
    inputs = network_again(config, state, model.n_steps)
    kept, again = mode.kept_network(inputs), mode.network_again(inputs)

    def checks(stored: bytes | None) -> Iterator[Check]:
        network = again or kept
        if network is None:
            yield Check("network evidence", False, "The network that was solved is not in the private state.")
            return
        scene = mode.scene(inputs, network, model)
        same = stored is not None and mode.report(inputs, scene).content == stored
        found = "is the committed one" if same else "differs from the committed one"
        said = f"The internal report, made again from the private inputs, {found}."
        yield Check("network evidence", same, said)
        if mode.kept_under is not None and again is not None:
            same = kept is not None and kept.identity == again.identity
            said = f"is {'' if same else 'not '}the one that was kept."
            yield Check("twin", same, f"The twin, drawn again from the key and the true network, {said}")
        if inputs.key is None:
            return  # sealed: the days cannot be drawn again
        other = "holds other loads or voltages than key, network and load model give"
        wrong = (f"{name} {other}." for name in other_parts(path, mode, inputs, scene))
        good = "One day of every part, drawn and solved again, is the released one."
        yield check("days solved again", wrong, good)

    return checks


def _keys_left(state: PrivateState, facts: Facts) -> Iterator[str]:
    """Keys that a sealed release, or its twin, should not have any more."""
    owners = {facts.release_id, f"twin-{facts.policy.paid_by(facts.release_id)}"}
    for where, names in state.internal_files():
        for name in sorted(names) if where in owners and facts.keys == "destroyed" else ():
            unfinished = name.startswith("twin-") and f"{name.rpartition('-')[0]}.json" not in names
            if name.endswith(KEY_ENDING) and not unfinished:
                yield f"{where}/{name} is still there; run the same release again, which ends it."


def _check_commitment(state: PrivateState, facts: Facts, stored: bytes | None) -> Check:
    def problems() -> Iterator[str]:
        if stored is None:
            yield f"The private state directory has no internal report of release '{facts.release_id}'."
        elif state.commit(facts.release_id, COMMITMENT, stored) != facts.commitment_sha256:
            yield "The internal report, or the key, is not the one the manifest commits to."
        if state.insecure_seed is not facts.insecure_seed:
            yield "The manifest and the private state directory disagree on the key's source."

    good = "The manifest's commitment opens to the internal report of the private state directory."
    return check("commitment", problems(), good)


def _check_ledger(state: PrivateState, opened: verify.Opened, facts: Facts) -> Check:
    """The composition statement against the ledger, as of the spend of this release."""
    try:
        ledger = Ledger.open(state, create=False)
        accounts = ledger.summary().accounts
    except DpPowerflowError as error:
        return Check("ledger", False, f"The ledger cannot be read: {error}.")
    of_loads = [account for account in accounts if account.kind is AccountKind.LOADS]
    of_network = [account for account in accounts if account.kind is facts.policy.account_kind]
    release_id, policy = facts.release_id, facts.policy
    payer = policy.paid_by(release_id)
    # A release that reuses an earlier load model does not charge the loads itself.
    own = any(spend.release_id == release_id for account in of_loads for spend in account.spends)

    def problems() -> Iterator[str]:
        loads = balances_after(of_loads, lambda charged: not own or charged == release_id)
        network = balances_after(of_network, lambda charged: policy.is_paid_by(charged, release_id))
        for name, balances in (("loads", loads), ("network", network)):
            stated = opened.raw["composition"][name]
            if not balances:
                yield f"The ledger has no charge of this release, or of its twin, to the {name}."
            elif not any(account_of(balance).model_dump() == stated for balance in balances):
                yield f"The ledger and the manifest disagree on what was spent on the {name}."

    charged = "this release" if payer == release_id else f"this release and for '{payer}'"
    good = f"The ledger was charged for {charged} and says what the manifest says of earlier ones."
    return check("ledger", problems(), good)


def balances_after(accounts: list[Account], counts: Callable[[str], bool]) -> list[Balance]:
    """Balances just after the spends whose names count."""
    return [
        account.as_of(spend.entry).balance
        for account in accounts
        for spend in account.spends
        if counts(spend.release_id)
    ]
