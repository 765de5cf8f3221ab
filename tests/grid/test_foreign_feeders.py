"""Feeders of other people: each ends where OpenDSS ends, works as a twin, or is refused with what to do.

What a refusal asks for is done here, as far as it says; the release is then planned without a further one.
Rows of the table in docs/results/solvers.md are logged.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_powerflow import Feeder, OperatedSolver, Protected, open_feeder
from dp_powerflow.config import Config, parse_config
from dp_powerflow.errors import DpPowerflowError, FeederError
from dp_powerflow.grid.feeder import TAPS_DECLARED
from dp_powerflow.grid.opendss.engine import DssOrigin
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.sources import feeder_problems, write_taps
from dp_powerflow.lowlevel import Rebuilder
from dp_powerflow.pipeline.plan import plan
from dp_powerflow.pipeline.release import run_release
from support.attacks import assert_twins_agree
from support.engine_controls import ControlledEngine, agreement, random_loads, starts_of
from support.pandapower_nets import quiet
from support.small import raw_config
from support.tables import tables_of

TABLES = tables_of(__file__)

RAW = raw_config("survey")


def twin_config(folder: Path, feeder: Mapping[str, Any], **sections: Mapping[str, Any]) -> Config:
    """The small release on a twin, with some keys of some sections replaced."""
    raw = {name: {**values, **sections.get(name, {})} for name, values in RAW.items()}
    return parse_config({"feeder": dict(feeder), **raw}, base=folder)


def refusal(config: Config, *, release: bool = False) -> str | None:
    """The sentence that refuses a release, planned or made; None where there is none."""
    try:
        plan(config)
        if release:
            run_release(config, workers=1)
    except DpPowerflowError as error:
        return str(error)
    return None


LENGTHS = Protected(lines="length")
CODES = Protected(lines="length", codes=True)


def feeder(*commands: str) -> Feeder:
    """A source, what is stated, and a load on buses a and b each."""
    head = "New Circuit.small basekv=12.47 bus1=source pu=1.05 r1=0.5 x1=1.5 r0=0.5 x0=1.5"
    main = "New Line.main bus1=source bus2=a r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 length=2 units=km"
    loads = [f"New Load.{bus} bus1={bus}.2 phases=1 kv=7.2 kw=200 kvar=90" for bus in ("a", "b")]
    tail = ["Set VoltageBases=[12.47]", "CalcVoltageBases"]
    return read_dss(DssOrigin((head, main, *commands, *loads, *tail)), name="small")


def twin_at_own_levels(true: Feeder, protected: Protected) -> Feeder:
    rebuilder = Rebuilder(true, protected)
    parameters = rebuilder.parameters()
    rebuilder.check(parameters)
    codes = {line.line: line.code for line in parameters.coded} if protected.codes else {}
    return rebuilder.build(parameters.levels, codes)


SEQUENCES = "r1=0.3 x1=0.6 r0=0.9 x0=1.8 c1=9 c0=4 units=km"


@pytest.mark.parametrize("protected", [Protected(), LENGTHS, CODES], ids=["impedance", "length", "codes"])
@pytest.mark.parametrize("nodes", [".2", ".2.3"])
def test_a_line_may_have_fewer_phases_than_its_code(nodes: str, protected: Protected) -> None:
    """Its twin got the charging of three phases: "OpenDSS cannot build a twin", as of EPRI's ckt5."""
    phases = nodes.count(".")
    drop = f"bus2=b{nodes} linecode=three phases={phases}"
    true = feeder(
        f"New Linecode.three nphases=3 {SEQUENCES}",
        f"New Line.drop bus1=a{nodes} {drop} length=0.5 units=km",
        f"New Line.other bus1=a{nodes} {drop.replace('b.', 'c.')} length=0.7 units=km",
    )
    twin = twin_at_own_levels(true, protected)
    for one, other in zip(true.lines, twin.lines, strict=True):
        np.testing.assert_allclose(one.primitive, other.primitive, rtol=0.03, atol=1e-9)
    assert [line.code for line in twin.lines] == [None, "three", "three"]


def test_a_line_with_more_phases_than_its_code_cannot_have_it_drawn() -> None:
    true = feeder(
        f"New Linecode.one nphases=1 {SEQUENCES}",
        *(f"New Line.{k} bus1=a bus2={k} linecode=one phases=3 length=1 units=km" for k in "bc"),
    )
    twin_at_own_levels(true, LENGTHS)
    with pytest.raises(FeederError, match="line 'b' has more phases than its conductor code 'one'"):
        Rebuilder(true, CODES).parameters()


def test_phases_that_are_coupled_closely_are_no_foreign_charging() -> None:
    """A cable of EPRI's J1 and M1 was refused for its charging, which was right: shapes are coarse."""
    r = "rmatrix=[0.0444 | 0.018 0.0444 | 0.018 0.018 0.0444]"
    x = "xmatrix=[0.2615 | 0.2483 0.2615 | 0.2404 0.2483 0.2615]"
    cable = f"New Line.cable bus1=a bus2=b {r} {x} cmatrix=[15 | -12 15 | -12 -12 15]"
    twin_at_own_levels(feeder(f"{cable} length=0.1"), Protected())


BANK = TABLES["BANK"]


def test_a_capacitor_that_a_control_switches_starts_closed_on_a_twin() -> None:
    """A file that states one open was refused, as EPRI's M1: its twin's own control finds the state."""
    left_open, left_closed = (feeder(*BANK.format(*of, "").splitlines()) for of in ((2.0, 0), (2.1, 1)))
    assert not left_open.as_operated.capacitors[0].closed
    twin = assert_twins_agree(left_open, left_closed)
    assert twin.as_operated.capacitors[0].closed
    assert "1 capacitors that a control switches start closed" in twin.notes
    rebuilder = Rebuilder(left_open, Protected(capacitors=True))
    rebuilder.check(rebuilder.parameters())
    disabled = feeder(*BANK.format(2.0, 0, "enabled=no").splitlines())
    with pytest.raises(FeederError, match="capacitor 'bank' has open steps"):
        Rebuilder(disabled).parameters()


# ----------------------------------------------------------------------------------- the circuits


MASTERS = TABLES["MASTERS"]


@pytest.mark.campaign
@pytest.mark.parametrize("name", MASTERS)
def test_a_downloaded_circuit_is_released_as_a_twin(name: str, tmp_path: Path, circuits: Path) -> None:
    config = twin_config(tmp_path, {"source": str(circuits / name)})
    assert refusal(config, release=True) is None


@pytest.mark.campaign
def test_a_downloaded_circuit_with_allocated_loads_is_released_with_a_load_table(
    tmp_path: Path, circuits: Path
) -> None:
    source = circuits / "ckt7/Master_ckt7.dss"
    refused = refusal(twin_config(tmp_path, {"source": str(source)}))
    assert refused is not None
    assert "such as that of '0862099-d1', are allocated" in refused
    rows = (f"{load.name},{load.kw:.3g},{load.kvar:.3g}" for load in open_feeder(source).loads)
    (tmp_path / "loads.csv").write_text("\n".join(["name,kw,kvar", *rows]))
    feeder = {"source": str(source), "loads": "loads.csv"}
    assert refusal(twin_config(tmp_path, feeder), release=True) is None


LOG = logging.getLogger(__name__)
SNAPSHOTS = 41
CLOSE = 1e-6
"""Largest |ΔV| where taps are equal [p.u.]."""
FLOATING = "ieee9500"
FLOATING_CLOSE = 1e-4
"""The same where generators stand on buses without ground: OpenDSS itself is no closer there."""
STIFF = "rahul123/ieee123master_base.dss"
"""Its source has 1e-8 ohm, so that rounding hides more at the node that it holds."""
CIRCUITS = (*MASTERS, "ckt7/Master_ckt7.dss", "epri_dpv/J1/Master_withPV.dss", "8500-Node/Master-unbal.dss")
REFUSED = TABLES["REFUSED"]
"""Circuits that are refused, and what the sentence names."""


def neutral(feeder: Feeder) -> list[int]:
    operation = feeder.as_operated
    return [0] * len(operation.regulators) + [int(bank.closed) for bank in operation.capacitors]


def check(name: str, source: Path, *, from_neutral: bool) -> None:
    """Compare random snapshots with OpenDSS from the same taps."""
    if name in REFUSED:
        with pytest.raises(DpPowerflowError, match=REFUSED[name]) as refusal:
            open_feeder(source, drop_islanded=True)
        LOG.info("| `%s` | refused: %s | | |", name, refusal.value)
        return
    solver = OperatedSolver(open_feeder(source, drop_islanded=True), threads=1)
    if from_neutral:
        solver.first_states = np.array([neutral(solver.feeder)], dtype=np.int64)
    load = random_loads(solver.feeder, SNAPSHOTS)
    solution = solver.solve(load, nodes="all")
    floating = FLOATING in name
    engine = ControlledEngine(solver.feeder, tolerance=1e-5 if floating else 1e-9).run(
        load, starts_of(solver, load)
    )
    found = agreement(solution, engine)
    solved = int(solution.converged.sum())
    start = "neutral" if from_neutral else "table"
    row = (name, start, solved, SNAPSHOTS, found.same, found.settled, found.largest)
    LOG.info("| `%s`, %s | %d of %d | %d of %d | %.1e |", *row)
    assert solution.mismatch[solution.converged].max() <= (1e-7 if name == STIFF else 1e-8)
    assert solved >= 0.97 * SNAPSHOTS
    assert found.same == found.settled >= 0.85 * SNAPSHOTS
    assert found.largest <= (FLOATING_CLOSE if floating else CLOSE)


@pytest.mark.campaign
@pytest.mark.parametrize("from_neutral", [False, True], ids=["table", "neutral"])
@pytest.mark.parametrize("name", CIRCUITS)
def test_foreign_circuits_end_where_opendss_ends_or_are_refused_by_name(
    name: str, from_neutral: bool, circuits: Path
) -> None:
    check(name, circuits / name, from_neutral=from_neutral)


@pytest.mark.campaign
def test_every_circuit_of_the_wheel_ends_where_opendss_ends_or_is_refused_by_name(
    foreign_cases: Path,
) -> None:
    failed = {}
    for source in opendss_masters(foreign_cases):
        name = source.relative_to(foreign_cases).as_posix()
        try:
            check(name, source, from_neutral=False)
        except (AssertionError, DpPowerflowError) as error:
            failed[name] = str(error)
    assert failed == {}


LARGE = "9500"
FAULTY = ["add or enable loads", "whose figures would stay as they are; disable it"]


def plans(folder: Path, source: Path | str, *, release: bool = False) -> list[str]:
    """What had to be done before the release was planned."""
    remedy = Remedied(folder, source)
    assert refusal(remedy.config(), release=release) is None
    if not remedy.applied:
        assert refusal(twin_config(folder, {"source": str(source)})) is None
    return remedy.applied


@pytest.mark.slow
@pytest.mark.parametrize(("name", "applied"), [("2Bus/2Bus.DSS", []), ("4Bus-YYD/YYD-Master.DSS", FAULTY)])
def test_a_circuit_works_after_what_it_asks_for(
    tmp_path: Path, foreign_cases: Path, name: str, applied: list[str]
) -> None:
    shutil.copytree(foreign_cases / Path(name).parts[0], tmp_path / Path(name).parts[0])
    assert plans(tmp_path, tmp_path / name, release=name.startswith("2Bus")) == applied


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "applied"), [("case14", ["set feeder.taps to FILE"]), ("case9", ["network.charging_epsilon"])]
)
def test_a_net_of_pandapower_plans_after_what_it_asks_for(
    tmp_path: Path, name: str, applied: list[str]
) -> None:
    save_pandapower_net(name, tmp_path / "net.json")
    assert plans(tmp_path, tmp_path / "net.json") == applied


# ---------------------------------------------------------------------------------------- remedies


def turned(net: Any, column: str, *tables: str) -> None:
    """Angles [deg] at the nearest multiple of 30."""
    for table in tables:
        if column in net[table]:
            net[table][column] = (net[table][column] / 30.0).round() * 30.0


def without_angles(net: Any) -> None:
    """Taps that turn voltages at neutral."""
    for table in (net.trafo, net.trafo3w):
        by_ratio = table["tap_step_degree"].fillna(0.0) == 0.0
        table["tap_pos"] = table["tap_pos"].where(by_ratio, table["tap_neutral"])


# what a sentence asks for → what is done: a key of the config, a change of the net, a last line of the file
REMEDIES: dict[str, tuple[str, Any]] = {
    "feeder.drop_islanded = true": ("feeder", ("drop_islanded", True)),
    "network.charging_epsilon": ("network", ("charging_epsilon", 0.5)),
    "set feeder.taps to FILE": ("taps", None),
    "set its tap_pos to tap_neutral": ("net", without_angles),
    "set its shift_degree to a multiple of 30": ("net", lambda net: turned(net, "shift_degree", "trafo")),
    "with step = max_step": ("net", lambda net: net.shunt.__setitem__("max_step", net.shunt["step"])),
    "state its set point vm_pu": (
        "net",
        lambda net: net.ext_grid.__setitem__("vm_pu", net.ext_grid.vm_pu.round(4)),
    ),
    "state va_degree as multiples of 30": ("net", lambda net: turned(net, "va_degree", "ext_grid", "gen")),
    "add or enable loads": ("line", "BatchEdit Load..* enabled=yes"),
    "whose figures would stay as they are; disable it": ("line", "Disable Fault.SLGFault"),
    "Error in Open Command: Circuit Element not found": ("without", None),
}


@dataclass
class Remedied:
    """A feeder file with everything done that its refusals ask for at once, and nothing else.

    Attributes
    ----------
    sections : `feeder` and `network` of the config, as far as a remedy states them.
    applied : what was done, in words.
    """

    folder: Path
    source: Path | str
    sections: dict[str, dict[str, Any]] = field(default_factory=lambda: {"feeder": {}, "network": {}})
    applied: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        reasons = feeder_problems(self.source)
        assert len(set(reasons)) == len(reasons)
        for reason in reasons:
            asked = [words for words in REMEDIES if words in reason]
            assert asked, f"no remedy is known for: {reason}"
            for words in asked:
                self._do(*REMEDIES[words], reason)
            self.applied += [words for words in asked if words not in self.applied]

    def config(self) -> Config:
        return twin_config(
            self.folder,
            {"source": str(self.source), **self.sections["feeder"]},
            network=self.sections["network"],
        )

    def _do(self, kind: str, what: Any, reason: str) -> None:
        path = Path(self.source)
        if kind in self.sections:
            self.sections[kind].update([what])
        elif kind == "taps":
            taps = open_feeder(str(path), drop_islanded=True).taps
            write_taps(self.folder / "taps.csv", taps, origin=f"{TAPS_DECLARED}the author of the net")
            self.sections["feeder"]["taps"] = str(self.folder / "taps.csv")
        elif kind == "net":
            with quiet() as pp:
                net = pp.from_json(str(path))
                what(net)
                pp.to_json(net, str(path))
        else:  # in place: the file is a copy, and so are those that it names
            lines = path.read_text(encoding="latin-1").splitlines()
            if kind == "line":
                lines.append(what)
            else:
                lines[int(re.findall(r"rejects line (\d+) of", reason)[0]) - 1] = "! removed"
            path.write_text("\n".join(lines) + "\n", encoding="latin-1")


def opendss_masters(cases: Path) -> list[Path]:
    """Files below a folder that define a circuit."""
    return [
        path for path in sorted(cases.rglob("*")) if path.suffix.lower() == ".dss" and defines_a_circuit(path)
    ]


def defines_a_circuit(path: Path) -> bool:
    lines = (line.strip().lower() for line in path.read_text(encoding="latin-1").splitlines())
    return any(line.startswith("new") and "circuit." in line.split("!")[0] for line in lines)


def pandapower_makers() -> list[str]:
    """Functions of `pandapower.networks` that make a net."""
    with quiet():
        networks = importlib.import_module("pandapower.networks")
    return sorted(
        name
        for name, made in vars(networks).items()
        if inspect.isfunction(made) and name.startswith(tuple(TABLES["NETS"]))
    )


def save_pandapower_net(name: str, path: Path) -> None:
    """Save one of pandapower's own nets."""
    with quiet() as pp:
        made = getattr(importlib.import_module("pandapower.networks"), name)()
        pp.to_json(made[0] if isinstance(made, list | tuple) else made, str(path))


def simbench_codes() -> Iterator[str]:
    """Codes of SimBench: all scenarios of one level, today's of several; none with every grid of a level."""
    with quiet():
        codes = importlib.import_module("simbench").collect_all_simbench_codes()
    return (
        code
        for code in codes
        if code.startswith(tuple(TABLES["ONE_LEVEL"])) or (code.endswith("-0-sw") and "-all-" not in code)
    )


# ------------------------------------------------------------------------------------ the campaign


def failures(folder: Path, sources: Mapping[str, Path | str], *, release: bool = False) -> dict[str, str]:
    """Feeders that are refused after all that they ask for was done → why."""
    found = {}
    for k, (name, source) in enumerate(sources.items()):
        own = folder / f"release {k}"
        own.mkdir()
        try:
            plans(own, source, release=release)
        except AssertionError as error:
            found[name] = str(error)
    return found


@pytest.mark.campaign
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_every_circuit_of_the_wheel_works_after_what_it_asks_for(
    tmp_path: Path, foreign_cases: Path, large: bool
) -> None:
    shutil.copytree(foreign_cases, tmp_path / "cases")
    masters = opendss_masters(tmp_path / "cases")
    chosen = {str(path): path for path in masters if (LARGE in str(path)) == large}
    assert len(chosen) == (6 if large else 28)
    assert failures(tmp_path, chosen, release=True) == {}


@pytest.mark.campaign
def test_every_net_of_pandapower_plans_after_what_it_asks_for(tmp_path: Path) -> None:
    sources = {}
    for name in pandapower_makers():
        sources[name] = tmp_path / f"{name}.json"
        save_pandapower_net(name, sources[name])
    assert failures(tmp_path, sources) == {}


@pytest.mark.campaign
def test_every_code_of_simbench_plans_after_what_it_asks_for(tmp_path: Path) -> None:
    pytest.importorskip("simbench")
    assert failures(tmp_path, {code: f"simbench:{code}" for code in simbench_codes()}) == {}
