"""One way to open a feeder, whatever its source: reading, checks, islands, tap files, other figures."""

from __future__ import annotations

import copy
import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
import scipy.sparse as sp

from dp_powerflow._files import write_named
from dp_powerflow.errors import FeederError
from dp_powerflow.grid.feeder import (
    TAPS_DECLARED,
    TAPS_GIVEN,
    TAPS_INTERNAL,
    TAPS_SOLVED,
    Feeder,
    Levels,
    Line,
    NetworkParameters,
    Tap,
    islanded_nodes,
    without_islands,
)
from dp_powerflow.grid.opendss import parameters as opendss_parameters
from dp_powerflow.grid.opendss.engine import DssOrigin, with_declared_loads
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.opendss.script import read_script
from dp_powerflow.grid.pandapower import parameters as pandapower_parameters
from dp_powerflow.grid.pandapower import reader as pandapower_reader
from dp_powerflow.grid.quantities import Protected, Quantity
from dp_powerflow.grid.refusals import Problems, reasons_of, refusal, said, some_of
from dp_powerflow.units import ComplexArray

BUILT_IN = ("ieee13", "ieee123", "ieee123-pv")
SIMBENCH = "simbench:"
TAP_COLUMNS = ("transformer", "winding", "tap")
LOAD_COLUMNS = ("name", "kw", "kvar")
CUSTOMERS = "customers"
_MOST_DIGITS = 18
_STRETCH = 1.5
_USUAL = Protected()


def open_feeder(
    source: str | Path,
    *,
    taps: TapTable | Sequence[Tap] | None = None,
    loads: LoadTable | None = None,
    base_mva: float = 1.0,
    drop_islanded: bool = False,
) -> Feeder:
    """Feeder of a built-in name, an OpenDSS file, a pandapower JSON file or a SimBench code.

    Parameters
    ----------
    source : `ieee13`, `ieee123`, `PATH.dss`, `PATH.json` (pandapower) or `simbench:CODE`.
    taps : regulator taps of the frozen frame; None solves them once at nominal load (OpenDSS) or takes those
        of the net.
    loads : nominal loads that are declared public, instead of the source's.
    base_mva : power base per phase [MVA].
    drop_islanded : leave out nodes that no source feeds, instead of refusing the feeder.
    """
    feeder = _opened(str(source), taps, loads, base_mva)
    if drop_islanded:
        feeder = without_islands(feeder)
    check_feeder(feeder)
    return feeder


def feeder_problems(
    source: str | Path,
    *,
    taps: TapTable | Sequence[Tap] | None = None,
    loads: LoadTable | None = None,
    base_mva: float = 1.0,
    drop_islanded: bool = False,
    twin: Protected | None = _USUAL,
) -> tuple[str, ...]:
    """Every reason why a feeder cannot be used, each a sentence that says what to do; none if it can be.

    INTERNAL: the sentences name elements of the private network. With nodes that no source feeds, the rest is
    looked at without them.

    Parameters
    ----------
    source, taps, loads, base_mva, drop_islanded : as of `open_feeder`.
    twin : figures that a twin of it protects; None where it is only to be solved, with its controls frozen.
    """
    problems = Problems()
    try:
        feeder = _opened(str(source), taps, loads, base_mva)
    except FeederError as error:
        return reasons_of(error)
    feeder = without_islands(feeder) if drop_islanded else feeder
    with problems.gather():
        check_feeder(feeder)
    if twin is not None and len(feeder.slack):
        problems.add(*twin_problems(without_islands(feeder), twin, drop_islanded=True))
    return problems.found


def twin_problems(
    feeder: Feeder, protected: Protected | None = None, *, drop_islanded: bool = False
) -> tuple[FeederError, ...]:
    """Every reason why no twin of an open feeder can be made, or none be solved while its controls act."""
    problems = Problems()
    with problems.gather():
        rebuilder = Rebuilder(feeder, protected, drop_islanded=drop_islanded)
        rebuilder.check(rebuilder.parameters())
    reasons = feeder.as_operated.refused
    problems.add(*(refusal("controls-not-modelled.reason", reason=reason) for reason in reasons))
    return problems.errors


def _opened(
    source: str, taps: TapTable | Sequence[Tap] | None, loads: LoadTable | None, base_mva: float
) -> Feeder:
    """The feeder as it was read, islands and all."""
    if not (base_mva > 0.0 and math.isfinite(base_mva)):
        raise refusal("feeder.base")
    table = taps if isinstance(taps, TapTable) or taps is None else TapTable(tuple(taps))
    ratios, lowered, path = None if table is None else table.taps, source.lower(), Path(source)
    if lowered in BUILT_IN or lowered.endswith(".dss"):
        name, origin = path.stem, None
        if lowered in BUILT_IN:
            name, origin = lowered, DssOrigin(tuple(built_in_commands(lowered)), public=True)
        origin = origin or read_script(path)
        origin = origin if loads is None else with_declared_loads(origin, loads.powers)
        feeder = read_dss(origin, name=name, taps=ratios, base_mva=base_mva)
    elif lowered.startswith(SIMBENCH):
        feeder = pandapower_reader.read_simbench(source[len(SIMBENCH) :], taps=ratios, base_mva=base_mva)
    elif lowered.endswith(".json"):
        feeder = pandapower_reader.read_pandapower_file(path, taps=ratios, base_mva=base_mva)
    else:
        raise refusal("feeder-unknown.source", source=source, names=", ".join(BUILT_IN))
    if loads is not None:
        loads.check(feeder)
        if not isinstance(feeder.origin, DssOrigin):
            feeder = pandapower_reader.with_declared_loads(feeder, loads.powers)
    return feeder if table is None else replace(feeder, taps_from=table.origin)


def built_in_commands(name: str) -> list[str]:
    """The OpenDSS commands of a built-in feeder, which need no file and solve nothing.

    They start with `Clear`, and end with voltage bases and coordinates set. Regulators stand at neutral with
    their controls on.

    Raises
    ------
    FeederError : there is no built-in feeder of that name.
    """
    if name not in BUILT_IN:
        raise refusal("feeder-unknown.built-in", name=name, names=", ".join(BUILT_IN))
    feeder, _, with_pv = name.partition("-")
    # `resources`, not a path: the package may be imported from an archive.
    text = resources.files(__package__).joinpath("data", f"{feeder}.dss").read_text(encoding="utf-8")
    left_out = ("!",) if with_pv else ("!", "New PVSystem.")
    return [line for line in text.splitlines() if line and not line.startswith(left_out)]


def check_feeder(feeder: Feeder) -> None:
    """Raise a `FeederError` that names everything wrong with the feeder."""
    islanded = islanded_nodes(feeder) if len(feeder.slack) else []
    problems = {
        "feeder-without-source.none": not len(feeder.slack),
        "feeder-zero-impedance.element": not np.all(np.isfinite(feeder.y.data)),
        "feeder-islanded.nodes": bool(islanded),
        "feeder-without-load.none": not len(feeder.retained),
    }
    Problems(
        refusal(name, count=len(islanded), shown=some_of(islanded))
        for name, holds in problems.items()
        if holds
    ).refuse()


@dataclass(frozen=True)
class TapTable:
    """Taps of a file.

    Attributes
    ----------
    origin : where they come from, in words (`Feeder.taps_from`).
    """

    taps: tuple[Tap, ...]
    origin: str = TAPS_GIVEN


def read_taps(path: Path) -> TapTable:
    """Taps of a CSV file.

    Its first line may say where they come from: `# declared: WHO` for taps that are public, or what
    `write_taps` writes for taps that were solved.
    """
    origin = TAPS_GIVEN
    with _csv_file(path, "taps") as file:
        first, skipped = file.readline(), 1
        if first.startswith("#"):
            origin = _origin_of_taps(first, path)
        else:
            skipped = 0
            file.seek(0)
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != TAP_COLUMNS:
            raise refusal("taps.columns", path=path)
        return TapTable(tuple(_tap(row, path, reader.line_num + skipped) for row in reader), origin)


@contextmanager
def _csv_file(path: Path, kind: str) -> Iterator[TextIO]:
    """Open a CSV file; refuse, with the sentences of its kind, what is wrong with the file itself."""
    if not path.is_file():
        raise refusal(f"{kind}.no-file", path=path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield file
    except (UnicodeDecodeError, csv.Error):
        raise refusal(f"{kind}.not-csv", path=path) from None


def _origin_of_taps(line: str, path: Path) -> str:
    stated = line.lstrip("#").strip()
    if stated == TAPS_INTERNAL:
        return stated
    who = stated[len(TAPS_DECLARED) :].strip()
    if not stated.lower().startswith(TAPS_DECLARED) or not who:
        raise refusal("taps.first-line", path=path)
    return TAPS_DECLARED + who


def write_taps(path: Path, taps: Iterable[Tap], *, origin: str = TAPS_INTERNAL) -> None:
    """Write taps so that `read_taps` gives them back exactly; INTERNAL unless `origin` says otherwise."""
    text = io.StringIO(newline="")
    text.write(f"# {origin}\n")
    writer = csv.writer(text)
    writer.writerow(TAP_COLUMNS)
    writer.writerows((tap.transformer, tap.winding, repr(tap.ratio)) for tap in taps)
    write_named(path, text.getvalue().encode())


def _tap(row: dict[str, str | None], path: Path, line: int) -> Tap:
    try:
        tap = Tap(str(row["transformer"]), int(row["winding"] or ""), float(row["tap"] or ""))
    except ValueError:
        raise refusal("taps.numbers", path=path, line=line) from None
    if not (math.isfinite(tap.ratio) and 0.5 <= tap.ratio <= 1.5):
        raise refusal("taps.ratio", path=path, line=line)
    return tap


@dataclass(frozen=True)
class LoadTable:
    """Nominal loads that are declared public.

    Attributes
    ----------
    powers : name of a load in lower case → (kW, kvar), multipliers included.
    customers : name of a load in lower case → number of its customers, where the table has that column.
    """

    powers: Mapping[str, tuple[float, float]]
    customers: Mapping[str, int] = field(default_factory=dict)

    def check(self, feeder: Feeder) -> None:
        """Refuse a table that does not state exactly the loads of the feeder."""
        known = {load.name.lower() for load in feeder.loads}
        missing, strange = sorted(known - self.powers.keys()), sorted(self.powers.keys() - known)
        if missing:
            raise refusal("load-table.lacks", missing=missing)
        if strange:
            raise refusal("load-table.strange", strange=strange)


def read_loads(path: Path) -> LoadTable:
    """Nominal loads of a CSV file with the columns name, kw, kvar, and customers if it counts them."""
    powers: dict[str, tuple[float, float]] = {}
    customers: dict[str, int] = {}
    with _csv_file(path, "load-table") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) not in (LOAD_COLUMNS, (*LOAD_COLUMNS, CUSTOMERS)):
            raise refusal("load-table.columns", path=path)
        for row in reader:
            name, place = str(row["name"]).strip().lower(), f"load table {path}, line {reader.line_num}"
            if not name or name in powers:
                raise refusal("load-table.row", place=place)
            try:
                powers[name] = float(row["kw"] or ""), float(row["kvar"] or "")
            except ValueError:
                raise refusal("load-table.numbers", place=place) from None
            if not all(map(math.isfinite, powers[name])):
                raise refusal("load-table.finite", place=place)
            if CUSTOMERS in row:
                count = (row[CUSTOMERS] or "").strip()
                if not count.isdecimal() or len(count) > _MOST_DIGITS:
                    raise refusal("load-table.customers", place=place)
                customers[name] = int(count)
    return LoadTable(powers, customers)


# --------------------------------------------------------------------- the same feeder with other figures


class Rebuilder:
    """A feeder that still knows its source, to be read and built again any number of times.

    Parameters
    ----------
    protected : figures that are read and replaced; by default R and X of all lines.
    drop_islanded : leave out what no source feeds, as when the feeder was opened.
    """

    def __init__(
        self, feeder: Feeder, protected: Protected | None = None, *, drop_islanded: bool = False
    ) -> None:
        origin = feeder.origin
        if not isinstance(origin, DssOrigin | pandapower_reader.PandapowerOrigin):
            raise refusal("feeder.no-source")
        self._source = opendss_parameters if isinstance(origin, DssOrigin) else pandapower_parameters
        self.feeder = feeder
        self._protected = Protected() if protected is None else protected
        self._drop_islanded = drop_islanded
        self._built: list[tuple[Levels, Mapping[str, str], Feeder]] = []

    @property
    def choices(self) -> tuple[Protected, bool]:
        """What is replaced, and whether islands are left out."""
        return self._protected, self._drop_islanded

    def parameters(self) -> NetworkParameters:
        """PRIVATE. The figures of the feeder that are protected.

        Raises
        ------
        FeederError : a twin could not have or protect something of the feeder; states every reason.
        """
        try:
            return self._parameters()
        except FeederError as error:
            problems = Problems([error])
            # What else is wrong shows on the same feeder with all its states taken as declared.
            with problems.gather():
                declared = self._with(origin=replace(cast(DssOrigin, self.feeder.origin), public=True))
                declared.check(declared._parameters(), lines_alone=True)
            problems.refuse()
            raise

    def _with(self, **changed: object) -> Rebuilder:
        """INTERNAL. The same for a feeder that differs, to find what is wrong."""
        other = copy.copy(self)
        other.feeder, other._built = replace(self.feeder, **cast(Any, changed)), []
        return other

    def _parameters(self) -> NetworkParameters:
        origin: Any = self.feeder.origin
        found: NetworkParameters = self._source.read_parameters(origin, self._protected)
        return found

    def check(self, parameters: NetworkParameters, *, lines_alone: bool = False) -> None:
        """Refuse a feeder that its levels do not give back, or a line that does not move with them.

        A source can hold figures that override those that are replaced; they would stay true in the result.
        """
        levels = parameters.levels
        codes = {line.line: line.code for line in parameters.coded} if self._protected.codes else {}
        self.build(levels, codes)
        # Compared at the taps of the feeder: a twin that solves its own may be a step off.
        solved = self.feeder.taps_from == TAPS_SOLVED
        source = self._with(taps_from=TAPS_DECLARED + "for a comparison") if solved else self
        same = source.build(levels, codes)
        rebuilt = self.feeder, same, source.build({k: _STRETCH * level for k, level in levels.items()}, codes)
        if any(each.nodes != self.feeder.nodes for each in rebuilt):
            raise refusal("feeder.other-nodes")
        problems = Problems(_lines_rebuilt_wrongly(rebuilt, self._protected))
        if not lines_alone:
            problems.add(*_others_rebuilt_wrongly(rebuilt, levels))
        problems.refuse()

    def build(self, levels: Levels, codes: Mapping[str, str] | None = None) -> Feeder:
        """The feeder of the same source whose elements have these levels and its lines these codes.

        Parameters
        ----------
        levels : of all the parameters, none missing.
        codes : line → entry of the catalogue.
        """
        codes = codes or {}
        for known_levels, known_codes, known in self._built:
            if known_levels == levels and known_codes == codes:
                return known
        bad = [key for key, level in levels.items() if not (np.isfinite(level) and level > 0.0)]
        if bad:
            raise refusal("feeder.level", bad=bad)
        made = self._source.rebuild(self.feeder, self._protected, levels, codes)
        made = without_islands(made) if self._drop_islanded else made
        self._built = [*self._built[-1:], (dict(levels), dict(codes), made)]
        return made


def network_parameters(feeder: Feeder) -> NetworkParameters:
    """PRIVATE. Every figure of a feeder that a twin could protect; identifies the network."""
    everything = Protected(transformers=True, capacitors=True, pv=True, charging=True)
    return Rebuilder(feeder, everything).parameters()


# ------------------------------------------------------------- whether a feeder is what its levels make of it

_COARSE, _FLOOR = 0.08, 1e-6
Rebuilt = tuple[Feeder, Feeder, Feeder]
"""A feeder, the same rebuilt at its own levels, and at larger ones."""


def _lines_rebuilt_wrongly(feeders: Rebuilt, protected: Protected) -> Iterator[FeederError]:
    """Every reason why the lines of a feeder are not what its levels make of them."""
    wrong: dict[str, list[str]] = {}
    for line, again, stretched in zip(*(each.lines for each in feeders), strict=True):
        if line.is_switch or len(line.nodes) < 2:
            continue
        series, shunt = _line_is_close(line.primitive, again.primitive)
        if not (series and shunt):
            wrong.setdefault(_why_line(line, protected, series=series), []).append(line.name)
        elif _close(again.primitive, stretched.primitive):
            wrong.setdefault("unmoved", []).append(line.name)
    for why, names in wrong.items():
        more = f", as {len(names) - 1} more lines," if len(names) > 1 else ""
        yield refusal("feeder.line-not-rebuilt", name=names[0], more=more, words=said(f"line.{why}"))


def _others_rebuilt_wrongly(feeders: Rebuilt, levels: Levels) -> Iterator[FeederError]:
    """Every reason why all else is not."""
    rest, again, stretched = (_without_lines(each) for each in feeders)
    if rest.shape != again.shape or not _close(rest, again):
        yield refusal("feeder.others-not-rebuilt")
    shunts = {key for key in levels if key.quantity in (Quantity.TRANSFORMER, Quantity.CAPACITOR)}
    if shunts and abs(again - stretched).max() == 0.0:
        yield refusal("feeder.others-unmoved")


def _why_line(line: Line, protected: Protected, *, series: bool) -> str:
    if line.code is not None and protected.lines == "length":
        return "code"
    if not series:
        return "series"
    return "charging" if protected.charging else "public-charging"


def _line_is_close(one: ComplexArray, other: ComplexArray) -> tuple[bool, bool]:
    """Whether series impedances, and charging, of two lines agree to the coarseness of shapes.

    Shapes are ratios of impedances: where phases are coupled so closely that the impedance is almost
    singular, admittances differ more.
    """
    if _close(one, other):
        return True, True
    if len(one) % 2:
        return False, False
    m = len(one) // 2
    between = [y[:m, m:] for y in (one, other)]
    try:
        series = _close(np.linalg.inv(between[0]), np.linalg.inv(between[1]))
    except np.linalg.LinAlgError:
        series = False
    shunts = [y[:m, :m] + part for y, part in zip((one, other), between, strict=True)]
    largest = float(np.abs(one).max())
    return series, bool(np.abs(shunts[0] - shunts[1]).max() <= _COARSE * largest + _FLOOR)


def _without_lines(feeder: Feeder) -> sp.csc_array:
    """What of Y is not of lines: transformers, sources, and capacitors that no control switches.

    Those of a twin start closed, wherever the true lines have led a control.
    """
    y = feeder.as_operated.y if feeder.as_operated.capacitors else feeder.y
    if not feeder.lines:
        return y
    rows = np.concatenate([np.repeat(line.nodes, len(line.nodes)) for line in feeder.lines])
    columns = np.concatenate([np.tile(line.nodes, len(line.nodes)) for line in feeder.lines])
    values = np.concatenate([line.primitive.ravel() for line in feeder.lines])
    lines = sp.coo_array((values, (rows.astype(np.int64), columns.astype(np.int64))), shape=y.shape)
    return sp.csc_array(y - lines.tocsc())


def _close(one: ComplexArray | sp.csc_array, other: ComplexArray | sp.csc_array) -> bool:
    """Whether admittances agree to the coarseness of shapes, each beside those of its row and column."""
    first, second = sp.csr_array(one), sp.csr_array(other)
    difference = abs(first - second).tocoo()
    size = np.asarray(abs(first).max(axis=1).todense()).ravel()
    scale = np.sqrt(size[difference.row] * size[difference.col])
    return bool(np.all(difference.data <= _COARSE * scale + _FLOOR))
