"""One way to open a feeder, whatever its source: reading, checks, islands, tap files, other figures."""

from __future__ import annotations

import copy
import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

import numpy as np

from dp_powerflow._files import write_named
from dp_powerflow.errors import FeederError, LoadTableError, TapsError
from dp_powerflow.grid.buses import Problems, islanded_nodes, reasons_of, without_islands
from dp_powerflow.grid.feeder import (
    TAPS_DECLARED,
    TAPS_GIVEN,
    TAPS_INTERNAL,
    TAPS_SOLVED,
    Feeder,
    Levels,
    NetworkParameters,
    Tap,
    lines_rebuilt_wrongly,
    others_rebuilt_wrongly,
)
from dp_powerflow.grid.opendss import parameters as opendss_parameters
from dp_powerflow.grid.opendss.engine import DssOrigin, file_origin, with_declared_loads
from dp_powerflow.grid.opendss.reader import read_dss
from dp_powerflow.grid.pandapower import parameters as pandapower_parameters
from dp_powerflow.grid.pandapower import reader as pandapower_reader
from dp_powerflow.grid.quantities import Protected

BUILT_IN = ("ieee13", "ieee123", "ieee123-pv")
SIMBENCH = "simbench:"
TAP_COLUMNS = ("transformer", "winding", "tap")
LOAD_COLUMNS = ("name", "kw", "kvar")
CUSTOMERS = "customers"
_NAMES_SHOWN = 3
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
    loads : nominal loads that are declared public, instead of those of the source.
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
    frozen = 'mend that, or set network.controls = "frozen"'
    problems.add(
        *(
            FeederError(f"{reason}; {frozen}", code="controls-not-modelled")
            for reason in feeder.as_operated.refused
        )
    )
    return problems.errors


def _opened(
    source: str, taps: TapTable | Sequence[Tap] | None, loads: LoadTable | None, base_mva: float
) -> Feeder:
    """The feeder as it was read, islands and all."""
    if not (base_mva > 0.0 and math.isfinite(base_mva)):
        raise FeederError("the power base must be positive, such as 1 MVA per phase")
    given = taps if isinstance(taps, TapTable) or taps is None else TapTable(tuple(taps))
    feeder = _read(source, given, loads, base_mva)
    return feeder if given is None else replace(feeder, taps_from=given.origin)


def _read(source: str, table: TapTable | None, loads: LoadTable | None, base_mva: float) -> Feeder:
    lowered = source.lower()
    taps = None if table is None else table.taps
    origin: DssOrigin | None = None
    if lowered in BUILT_IN:
        origin = DssOrigin(tuple(built_in_commands(lowered)), public=True)
    elif lowered.endswith(".dss"):
        origin = file_origin(Path(source))
    if origin is not None:
        name = lowered if origin.public else Path(source).stem
        origin = origin if loads is None else with_declared_loads(origin, loads.powers)
        feeder = read_dss(origin, name=name, taps=taps, base_mva=base_mva)
        if loads is not None:
            loads.check(feeder)
        return feeder
    if lowered.startswith(SIMBENCH) or lowered.endswith(".json"):
        if lowered.startswith(SIMBENCH):
            feeder = pandapower_reader.read_simbench(source[len(SIMBENCH) :], taps=taps, base_mva=base_mva)
        else:
            feeder = pandapower_reader.read_pandapower_file(Path(source), taps=taps, base_mva=base_mva)
        if loads is not None:
            loads.check(feeder)
            feeder = pandapower_reader.with_declared_loads(feeder, loads.powers)
        return feeder
    raise FeederError(
        f"'{source}' is not a feeder; use one of {', '.join(BUILT_IN)}, a .dss file, "
        "a pandapower .json file, or simbench:CODE",
        code="feeder-unknown",
    )


def built_in_commands(name: str) -> list[str]:
    """The OpenDSS commands of a built-in feeder, which need no file and solve nothing.

    They start with `Clear`, and end with voltage bases and coordinates set. Regulators stand at neutral with
    their controls on.

    Raises
    ------
    FeederError : there is no built-in feeder of that name.
    """
    if name not in BUILT_IN:
        raise FeederError(
            f"there is no built-in feeder '{name}'; choose one of: {', '.join(BUILT_IN)}.",
            code="feeder-unknown",
        )
    feeder, _, with_pv = name.partition("-")
    # `resources`, not a path: the package may be imported from an archive.
    text = resources.files(__package__).joinpath("data", f"{feeder}.dss").read_text(encoding="utf-8")
    left_out = ("!",) if with_pv else ("!", "New PVSystem.")
    return [line for line in text.splitlines() if line and not line.startswith(left_out)]


def check_feeder(feeder: Feeder) -> None:
    """Raise a `FeederError` that names everything wrong with the feeder."""
    problems = Problems()
    if not len(feeder.slack):
        problems.add(
            FeederError(
                "the feeder has no voltage source; add one (Vsource or external grid)",
                code="feeder-without-source",
            )
        )
    if not np.all(np.isfinite(feeder.y.data)):
        problems.add(
            FeederError(
                "an element of the feeder has zero impedance; give it a small one, such as 1e-6 ohm",
                code="feeder-zero-impedance",
            )
        )
    islanded = islanded_nodes(feeder) if len(feeder.slack) else []
    if islanded:
        shown = ", ".join(islanded[:_NAMES_SHOWN]) + (", …" if len(islanded) > _NAMES_SHOWN else "")
        problems.add(
            FeederError(
                f"{len(islanded)} nodes are islanded, with no path to a source ({shown}); leave them out "
                "with feeder.drop_islanded = true (on the command line --drop-islanded), or close a switch "
                "that feeds them",
                code="feeder-islanded",
            )
        )
    if not len(feeder.retained):
        problems.add(
            FeederError(
                "the feeder has no load and no generation that is enabled; add or enable loads before using "
                "it",
                code="feeder-without-load",
            )
        )
    problems.refuse()


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
    if not path.is_file():
        raise TapsError(f"tap file {path} does not exist; write one with 'inspect --save-taps'")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            origin = _origin_of_taps(first, path) if first.startswith("#") else None
            if origin is None:
                file.seek(0)
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != TAP_COLUMNS:
                raise TapsError(f"tap file {path} must have the columns {', '.join(TAP_COLUMNS)}")
            skipped = int(origin is not None)
            taps = tuple(_tap(row, path, reader.line_num + skipped) for row in reader)
    except (UnicodeDecodeError, csv.Error):
        raise TapsError(f"tap file {path} is not CSV text; write one with 'inspect --save-taps'") from None
    return TapTable(taps, origin or TAPS_GIVEN)


def _origin_of_taps(line: str, path: Path) -> str:
    said = line.lstrip("#").strip()
    if said == TAPS_INTERNAL:
        return said
    who = said[len(TAPS_DECLARED) :].strip()
    if not said.lower().startswith(TAPS_DECLARED) or not who:
        raise TapsError(
            f"the first line of tap file {path} must be '# {TAPS_DECLARED}' and who set these taps, or the "
            "names of the columns"
        )
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
        raise TapsError(
            f"tap file {path}, line {line}: winding must be a whole number and tap a ratio"
        ) from None
    if not (math.isfinite(tap.ratio) and 0.5 <= tap.ratio <= 1.5):
        raise TapsError(f"tap file {path}, line {line}: a tap is a turns ratio between 0.5 and 1.5")
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
            raise LoadTableError(f"the load table lacks load '{missing[0]}'; it must state all of them")
        if strange:
            raise LoadTableError(
                f"the load table names '{strange[0]}', a load which the feeder does not have"
            )


def read_loads(path: Path) -> LoadTable:
    """Nominal loads of a CSV file with the columns name, kw, kvar, and customers if it counts them."""
    if not path.is_file():
        raise LoadTableError(f"load table {path} does not exist; correct feeder.loads")
    powers: dict[str, tuple[float, float]] = {}
    customers: dict[str, int] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) not in (LOAD_COLUMNS, (*LOAD_COLUMNS, CUSTOMERS)):
                raise LoadTableError(
                    f"load table {path} must have the columns {', '.join(LOAD_COLUMNS)}, and may have the "
                    f"column {CUSTOMERS} after them"
                )
            for row in reader:
                name, place = str(row["name"]).strip().lower(), f"load table {path}, line {reader.line_num}"
                if not name or name in powers:
                    raise LoadTableError(f"{place}: every load has one row, and a name")
                powers[name] = _power(row, place)
                if CUSTOMERS in row:
                    customers[name] = _customers(row[CUSTOMERS], place)
    except (UnicodeDecodeError, csv.Error):
        raise LoadTableError(f"load table {path} is not CSV text; write it again") from None
    return LoadTable(powers, customers)


def _customers(text: str | None, place: str) -> int:
    if text is None or not text.strip().isdecimal() or len(text.strip()) > _MOST_DIGITS:
        raise LoadTableError(f"{place}: customers must be a whole number, 0 or more")
    return int(text)


def _power(row: dict[str, str | None], place: str) -> tuple[float, float]:
    try:
        kw, kvar = float(row["kw"] or ""), float(row["kvar"] or "")
    except ValueError:
        raise LoadTableError(f"{place}: kw and kvar must be numbers") from None
    if not (math.isfinite(kw) and math.isfinite(kvar)):
        raise LoadTableError(f"{place}: kw and kvar must be finite")
    return kw, kvar


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
        if not isinstance(feeder.origin, DssOrigin | pandapower_reader.PandapowerOrigin):
            raise FeederError("this feeder has no source to be read from; open it with open_feeder")
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
        FeederError : a twin could not have all that the feeder has, or could not protect it; all of it.
        """
        try:
            return self._parameters()
        except FeederError as error:
            problems = Problems([error])
            # What else is wrong shows on the same feeder with all its states taken as declared.
            with problems.gather():
                declared = self._with(_as_if_public(self.feeder))
                declared.check(declared._parameters(), lines_alone=True)
            problems.refuse()
            raise

    def _with(self, feeder: Feeder) -> Rebuilder:
        other = copy.copy(self)
        other.feeder, other._built = feeder, []
        return other

    def _parameters(self) -> NetworkParameters:
        origin = self.feeder.origin
        if isinstance(origin, DssOrigin):
            return opendss_parameters.read_parameters(origin, self._protected)
        assert isinstance(origin, pandapower_reader.PandapowerOrigin)
        return pandapower_parameters.read_parameters(origin, self._protected)

    def check(self, parameters: NetworkParameters, *, lines_alone: bool = False) -> None:
        """Refuse a feeder that its levels do not give back, or a line that does not move with them.

        A source can hold figures that override those that are replaced; they would stay true in the result.
        """
        levels = parameters.levels
        codes = {line.line: line.code for line in parameters.coded} if self._protected.codes else {}
        self.build(levels, codes)
        # Compared at the taps of the feeder: a twin that solves its own may be a step beside them.
        source = self._at_own_taps()
        same = source.build(levels, codes)
        rebuilt = self.feeder, same, source.build({k: _STRETCH * level for k, level in levels.items()}, codes)
        problems = Problems(lines_rebuilt_wrongly(rebuilt, self._protected))
        if not lines_alone:
            problems.add(*others_rebuilt_wrongly(rebuilt, levels))
        problems.refuse()

    def _at_own_taps(self) -> Rebuilder:
        """INTERNAL. One that builds with the taps of the feeder, wherever they come from."""
        if self.feeder.taps_from != TAPS_SOLVED:
            return self
        return self._with(replace(self.feeder, taps_from=TAPS_DECLARED + "for a comparison"))

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
            raise FeederError(f"the {bad[0].quantity} of a rebuilt element must be positive and finite")
        of_opendss = isinstance(self.feeder.origin, DssOrigin)
        rebuild = opendss_parameters.rebuild if of_opendss else pandapower_parameters.rebuild
        made = rebuild(self.feeder, self._protected, levels, codes)
        made = without_islands(made) if self._drop_islanded else made
        self._built = [*self._built[-1:], (dict(levels), dict(codes), made)]
        return made


def _as_if_public(feeder: Feeder) -> Feeder:
    """INTERNAL. The feeder with nothing that was solved on it; for no result but a list of what is wrong."""
    origin = feeder.origin
    assert isinstance(origin, DssOrigin | pandapower_reader.PandapowerOrigin)
    return replace(feeder, origin=replace(origin, public=True))


def network_parameters(feeder: Feeder) -> NetworkParameters:
    """PRIVATE. Every figure of a feeder that a twin could protect; identifies the network."""
    everything = Protected(transformers=True, capacitors=True, pv=True, charging=True)
    return Rebuilder(feeder, everything).parameters()
