"""The functions of the public API: one per job. `dp_powerflow` exports them; nobody imports this module."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from dp_powerflow.errors import ConfigError, PowerFlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dp_powerflow._certify import Certification
    from dp_powerflow._inspection import Inspection
    from dp_powerflow.almanac.weather import Weather
    from dp_powerflow.config import Config
    from dp_powerflow.corpus.gridfm.export import GridfmExport, GridfmVariety
    from dp_powerflow.corpus.reader import Corpus
    from dp_powerflow.fidelity.report import FidelityReport
    from dp_powerflow.fleet.manifest import Fleet
    from dp_powerflow.fleet.run import FleetResult
    from dp_powerflow.grid.feeder import Feeder, Tap
    from dp_powerflow.grid.sources import TapTable
    from dp_powerflow.loads.declared import LongColumns, MeterFormat, WideColumns
    from dp_powerflow.loads.history import LoadHistory
    from dp_powerflow.manifest.review import Review
    from dp_powerflow.manifest.verify import VerifyReport
    from dp_powerflow.model.gaussian import LoadModel
    from dp_powerflow.model.options import FitOptions
    from dp_powerflow.pipeline.deriving.derived import Derived
    from dp_powerflow.pipeline.plan import PlannedRelease
    from dp_powerflow.pipeline.release import ReleaseResult
    from dp_powerflow.powerflow.batch import Solution
    from dp_powerflow.powerflow.operated import ControlMode, OperatedSolution
    from dp_powerflow.privacy.budget import Budget
    from dp_powerflow.privacy.random import StreamKey
    from dp_powerflow.quality.measure import Quality
    from dp_powerflow.twin.design import TwinDesign, TwinGuarantee
    from dp_powerflow.twin.draw import Twin
    from dp_powerflow.units import ComplexArray


# --- a release, from a config ------------------------------------------------------------------------------
def read_config(path: str | PathLike[str]) -> Config:
    """Read the TOML file of a release.

    Parameters
    ----------
    path : str or path
        The file. Paths in it are relative to it.

    Returns
    -------
    Config
        Checked; nothing that it names has been opened yet.

    Raises
    ------
    errors.ConfigError
        The file is missing, is not TOML, or says something impossible; the message says what to do.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.read_config("release.toml").release.days
    14
    """
    from dp_powerflow.config import read_config

    return read_config(Path(path))


def plan(config: Config, *, on_stage: Callable[[str], None] | None = None) -> PlannedRelease:
    """Say what a release would cost and leave, after every check that it would make. Spends nothing.

    Parameters
    ----------
    config : Config
        From `read_config`.
    on_stage : callable, optional
        Told what is being done.

    Returns
    -------
    PlannedRelease
        ``plan.queries`` with sensitivity and noise, ``plan.epsilon`` and ``plan.delta`` of the customers,
        both accounts of the ledger before and after, ``affordable``, ``yearly`` costs, and ``feasibility``:
        voltages of public loads on public networks, and INTERNAL on the network itself. That you have looked
        is kept in the private state.

    Raises
    ------
    errors.DpPowerflowError
        The release would be refused; the message says what to do.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> planned = dpf.plan(dpf.read_config("release.toml"))
    >>> planned.plan.epsilon <= 1.0
    True
    """
    from dp_powerflow.pipeline.plan import plan

    return plan(config, on_stage or (lambda _: None))


def release(
    config: Config,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    on_stage: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ReleaseResult:
    """Make a release, or finish one that was interrupted: check, charge the ledger, fit, solve, publish.

    Parameters
    ----------
    config : Config
        From `read_config`.
    workers : int, optional
        Parts made at once on this machine; by default one per core. The released bytes do not depend on it.
    scheduler : str, optional
        Address of a Dask cluster, or ``"local"``, instead of processes (extra ``cluster``).
    on_stage : callable, optional
        Told what is being done.
    on_progress : callable, optional
        Told how many parts are done, and of how many.

    Returns
    -------
    ReleaseResult
        ``path`` of the release; the rest is INTERNAL.

    Raises
    ------
    errors.DpPowerflowError
        The release is refused; the message says what to do. What was paid for is kept.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> result = dpf.release(dpf.read_config("release.toml"), workers=1)
    >>> result.path.name
    'release'
    """
    from dp_powerflow._parallel import engine_of
    from dp_powerflow.pipeline.release import run_release

    return run_release(
        config, engine=engine_of(workers, scheduler), say=on_stage or (lambda _: None), progress=on_progress
    )


def verify(
    release: str | PathLike[str],
    *,
    private: str | PathLike[str] | None = None,
    config: Config | None = None,
    source: str | PathLike[str] | None = None,
    signers: Sequence[str | PathLike[str]] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Recompute what can be recomputed of a release, of the corpus of a fleet, or of a derived release.

    Parameters
    ----------
    release : str or path
        Directory or URL. What is at a URL is read there; nothing is copied to a disk.
    private : str or path, optional
        Private state directory, for the owner or an auditor: opens the commitment and checks the ledger.
    config : Config, optional
        With `private`: recomputes the internal report too, and all bytes of a derived release. For one
        release, not for a fleet.
    source : str or path, optional
        Of a derived release: directory of the release that it came from. That is verified too, and where it
        publishes its twin, all bytes are recomputed.
    signers : sequence of path, optional
        PEM files of public Ed25519 keys whose signatures are demanded.
    on_progress : callable, optional
        Told how many feeders of a fleet are done, and of how many.

    Returns
    -------
    VerifyReport
        ``verdict``, ``checks`` (name, ok, sentence) and what is attested but cannot be checked.

    Raises
    ------
    errors.DpPowerflowError
        There is nothing to verify at that place.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> report = dpf.verify("release")
    >>> [check.name for check in report.checks if not check.ok]  # its noise came from a seed
    ['random source']
    """
    if config is not None and private is None:
        raise ConfigError("the config recomputes the evidence and needs the private state too")
    from dp_powerflow.corpus.storage import location

    place, keys = location(release), []
    if signers:
        from dp_powerflow.manifest.signatures import public_digits

        keys = [public_digits(Path(key)) for key in signers]
    report = _verified(release, private, config, source, on_progress)
    from dp_powerflow.manifest.verify import with_signatures

    return with_signatures(report, place, report.demanded, keys)


def _verified(
    release: str | PathLike[str],
    private: str | PathLike[str] | None,
    config: Config | None,
    source: str | PathLike[str] | None,
    on_progress: Callable[[int, int], None] | None,
) -> VerifyReport:
    from dp_powerflow.manifest.verify import begin

    begin(Path(release))  # a URL has no such file; the rest is imported meanwhile
    from dp_powerflow.corpus.reader import refuse_unfinished
    from dp_powerflow.corpus.storage import RemotePath, location, one_reading
    from dp_powerflow.fleet.manifest import is_fleet

    place = location(release)
    if isinstance(place, Path):
        from dp_powerflow.manifest.verify import STUDY, kind_at

        if kind_at(place) == STUDY:
            from dp_powerflow.pipeline.deriving.derived import verify_derived

            if private is None:
                return verify_derived(place, release=None if source is None else Path(source))
            if config is None or source is not None:
                raise ConfigError(
                    "a derived release is computed again from the private state with the config of its "
                    "release, or from the directory of its release; give both of the first or the second "
                    "alone"
                )
            from dp_powerflow.pipeline.deriving.owner import basis_of_config

            return verify_derived(place, remake=partial(basis_of_config, config, state_path=Path(private)))
    if source is not None:
        raise ConfigError(f"{place} is no derived release, so it came from no other; leave out its source")
    if is_fleet(place):
        if config is not None:
            raise ConfigError(
                "the config recomputes the evidence of one release; give the directory of one feeder with it"
            )
        from dp_powerflow.fleet.verify import verify_fleet

        return verify_fleet(place, private, progress=on_progress)
    if isinstance(place, RemotePath):
        refuse_unfinished(place)
    with one_reading(place) as read:
        if private is None:
            from dp_powerflow.manifest.verify import verify_release

            return verify_release(read)
        from dp_powerflow.pipeline.audit import verify_private

        return verify_private(read, private, config)


def sign(
    release: str | PathLike[str], key: str | PathLike[str], role: str, *, password: bytes | None = None
) -> Path:
    """Sign a release that is intact: a detached Ed25519 signature of its manifest.

    Parameters
    ----------
    release : str or path
        Directory of a release, a fleet or a derived release.
    key : str or path
        PEM file of a private Ed25519 key.
    role : str
        Under which the signer answers for it, such as ``"privacy officer"``.
    password : bytes, optional
        Of the key's file.

    Returns
    -------
    Path
        The file of the signature, below ``signatures``.

    Raises
    ------
    errors.DpPowerflowError
        The release is not intact, or the key cannot be used.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.sign("release", "nowhere.pem", "privacy officer")
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.pem'
    """
    from dp_powerflow.manifest.signatures import make_signature, private_key, write_signature

    place, own, report = Path(release), private_key(Path(key), password), verify(release)
    failed = [check for check in report.failures if check.name not in ("random source", "signatures")]
    if failed or report.manifest_sha256 is None:
        raise ConfigError(
            f"{place} is not intact, so it is not signed: {failed[0].sentence}; run 'dp-powerflow verify'"
        )
    return write_signature(place, make_signature(report.manifest_sha256, own, role))


def review(release: str | PathLike[str], *, signers: Sequence[str | PathLike[str]] = ()) -> Review:
    """The questions that reviewers ask of a release, with the answers that its files give.

    Parameters
    ----------
    release : str or path
        Directory or URL of a release.
    signers : sequence of path, optional
        As of `verify`.

    Returns
    -------
    Review
        ``sections``: title → rows of question, answer and where it is checked; ``verdict``; ``to_html()``.

    Raises
    ------
    errors.DpPowerflowError
        There is no release at that place.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> list(dpf.review("release").sections)[0]
    'Summary for a board'
    """
    from dp_powerflow.corpus.storage import location
    from dp_powerflow.manifest.review import review as reviewed
    from dp_powerflow.manifest.signatures import public_digits

    report = verify(release, signers=signers)
    return reviewed(location(release), report, [public_digits(Path(key)) for key in signers])


def derive(
    kind: str,
    source: str | PathLike[str] | Config,
    out: str | PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
    workers: int | None = None,
    on_stage: Callable[[str], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Derived:
    """Compute figures from the twin and the loads of a finished release. Spends nothing.

    Both guarantees of the release hold, for any number of such derivations. The ledger is not opened.

    Parameters
    ----------
    kind : str
        ``"opf"``, ``"hosting-capacity"`` or ``"reliability"``.
    source : str or path, or Config
        Directory of a release that publishes its twin; or, for its owner, the config that made it, or the
        path of that TOML file.
    out : str or path
        A new folder. It is there whole or not at all.
    settings : mapping, optional
        Public settings of the kind; ``{"study": {"latitude_deg": 45.0}}`` is the sun of new PV. What is not
        set has its default.
    workers : int, optional
        Threads or processes; by default one per core. The bytes do not depend on it.
    on_stage : callable, optional
        Told what is being done.
    on_progress : callable, optional
        Told how much is done, and of how much.

    Returns
    -------
    Derived
        The derived release: ``tables``, ``table(name)``, ``figures``, ``guarantee``.

    Raises
    ------
    errors.DpPowerflowError
        The release is not finished, was not solved on a twin or does not publish it, or a setting cannot be
        used; the message says what to do, and nothing was written.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.derive("weather", "release", "derived")
    Traceback (most recent call last):
        ...
    dp_powerflow.errors.ConfigError: there is no derived release 'weather'; choose one of opf, ...
    """
    from dp_powerflow.pipeline.deriving.derived import make_derived, open_derived, prepare
    from dp_powerflow.pipeline.deriving.source import split_settings
    from dp_powerflow.studies.study import kind_of

    of_study, of_kind = split_settings(settings)
    chosen, target = kind_of(kind, of_kind), Path(out)
    prepare(target)
    say = on_stage or (lambda _: None)
    say("opening the release")
    if isinstance(source, str | PathLike) and not Path(source).is_file():
        from dp_powerflow.pipeline.deriving.source import basis_of_release

        basis = basis_of_release(Path(source), of_study)
    else:
        from dp_powerflow.pipeline.deriving.owner import basis_of_config

        config = read_config(source) if isinstance(source, str | PathLike) else source
        basis = basis_of_config(config, of_study)
    make_derived(basis, chosen, target, workers, say, on_progress)
    return open_derived(target)


def open_derived(path: str | PathLike[str]) -> Derived:
    """Open a derived release.

    Parameters
    ----------
    path : str or path
        Its folder.

    Returns
    -------
    Derived
        ``tables`` are names, ``table(name)`` is a pyarrow table, compared with its SHA-256 when it is read;
        also ``figures``, ``sentences``, ``settings`` and ``guarantee``.

    Raises
    ------
    errors.DpPowerflowError
        There is no derived release at that place, or a file of it is damaged.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.open_derived("release")
    Traceback (most recent call last):
        ...
    dp_powerflow.manifest.model.ReleaseError: release is not a derived release; ...
    """
    from dp_powerflow.pipeline.deriving.derived import open_derived

    return open_derived(Path(path))


def certify(
    config: Config,
    *,
    model: str | PathLike[str] | None = None,
    line_draws: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Certification:
    """Evaluate the network evidence of a release on the true network. INTERNAL; spends nothing.

    Parameters
    ----------
    config : Config
        Of mode ``"true-network"``.
    model : str or path, optional
        Load model to use; by default the one that the release has fitted.
    line_draws : int, optional
        Days drawn for the losses per line, 0 for none; by default what the config says.
    on_progress : callable, optional
        Told how many days are calibrated, and of how many.

    Returns
    -------
    Certification
        Text and JSON, and the private directory they were written to.

    Raises
    ------
    errors.DpPowerflowError
        There is no load model yet, or the mode needs no evidence.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.certify(dpf.read_config("release.toml"))
    Traceback (most recent call last):
        ...
    dp_powerflow.errors.ConfigError: mode 'twin-network' needs no network evidence: ...
    """
    from dp_powerflow._certify import certify_config

    path = None if model is None else Path(model)
    return certify_config(config, path, line_draws=line_draws, progress=on_progress)


def open_corpus(path: str | PathLike[str], *, check: bool = True) -> Corpus:
    """Open a released corpus.

    Parameters
    ----------
    path : str or path
        Directory or URL of a release.
    check : bool
        Compare every file with the SHA-256 in `manifest.json` when it is first read. A file that was read
        once is not hashed again until it changes. A folder without a manifest is not checked.

    Returns
    -------
    Corpus
        ``voltages(days, nodes)`` is complex (day, step, node) [p.u.]; also data frames, xarray, Zarr and
        windows for training. ``holds`` names what else there is: ``loads()``, ``generation()``, ``head()``
        [kW + j kvar], ``taps()``, ``capacitors()``.

    Raises
    ------
    errors.DpPowerflowError
        There is no finished release at that place, or a file of it is damaged; reading says so too.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.open_corpus("release").voltages(days=range(7)).shape
    (7, 24, 41)
    >>> "voltages" in dpf.open_corpus("release").holds
    True
    """
    from dp_powerflow.corpus.reader import open_corpus

    return open_corpus(path, check=check)


def fidelity(
    release: str | PathLike[str],
    config: Config,
    *,
    quick: bool = False,
    on_stage: Callable[[str], None] | None = None,
) -> FidelityReport:
    """Compare a release with its true meters and its true feeder. INTERNAL; spends nothing.

    Every figure stands next to its floor, real customers against other real customers, with a verdict in
    words. An attack panel fits the design of the release's load model again with fresh noise, and says what
    attackers get next to what ε allows. To choose the settings of a release by any of it is a leak.

    Parameters
    ----------
    release : str or path
        Directory or URL of the release.
    config : Config
        What the release was made from; its private state is needed. The page and the figures are kept
        there, in ``internal/<release id>/``.
    quick : bool
        Fewer customers, days and fits.
    on_stage : callable, optional
        Told what is being done.

    Returns
    -------
    FidelityReport
        ``findings``, ``summary`` and ``attacks``; ``to_html()``, ``to_json()``, and the page in a notebook.

    Raises
    ------
    errors.DpPowerflowError
        Another config made the release, or its meters are fewer than 8 customers or 14 days.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.fidelity("no release", dpf.read_config("release.toml"))
    Traceback (most recent call last):
        ...
    dp_powerflow.errors.CorpusError: ...no release is not a directory; give the directory of a release
    """
    from dp_powerflow.corpus.storage import location
    from dp_powerflow.fidelity.measure import fidelity_of_release
    from dp_powerflow.fidelity.verdicts import FULL, QUICK

    effort = QUICK if quick else FULL
    return fidelity_of_release(location(release), config, effort, on_stage or (lambda _: None))[0]


# --- fleets -----------------------------------------------------------------------------------------------
def quality(
    corpus: Corpus, *, workers: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Quality:
    """Look at every voltage of a release once: what `quality.html` shows.

    It reads released files only, so it costs no privacy.

    Parameters
    ----------
    corpus : Corpus
        From `open_corpus`.
    workers : int, optional
        Threads; one per core by default. The result does not depend on it.
    on_progress : callable, optional
        Told how many days are done, and of how many.

    Returns
    -------
    Quality
        Figures in p.u., kW and shares; ``to_html()`` is the page, ``to_json()`` the figures. A notebook
        shows the page.

    Raises
    ------
    errors.DpPowerflowError
        A file of the release is missing or damaged.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> quality = dpf.quality(dpf.open_corpus("release"))
    >>> quality.days, quality.voltages.lowest.value_pu > 0.9
    (14, True)
    """
    from dp_powerflow.manifest.render import quality_of_release

    return quality_of_release(corpus, workers=workers, progress=on_progress)


def release_fleet(
    config: str | PathLike[str],
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> FleetResult:
    """Make one corpus of many feeders with one set of customers, or the feeders that are missing.

    Parameters
    ----------
    config : str or path
        TOML file of the fleet.
    workers : int, optional
        Parts made at once on this machine; by default one per core.
    scheduler : str, optional
        Address of a Dask cluster, or ``"local"``, instead of processes (extra ``cluster``).
    on_progress : callable, optional
        Told how many feeders are done, and of how many.

    Returns
    -------
    FleetResult
        ``path`` of the corpus and the outcome of every feeder (INTERNAL).

    Raises
    ------
    errors.DpPowerflowError
        What all feeders share is not usable. A feeder that fails is in the result instead.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.release_fleet("no such fleet.toml")
    Traceback (most recent call last):
        ...
    dp_powerflow.errors.ConfigError: fleet file no such fleet.toml does not exist; ...
    """
    from dp_powerflow._parallel import engine_of
    from dp_powerflow.fleet.feeders import read_fleet_config
    from dp_powerflow.fleet.run import run_fleet

    return run_fleet(
        read_fleet_config(Path(config)), engine=engine_of(workers, scheduler), progress=on_progress
    )


def open_fleet(path: str | PathLike[str], *, check: bool = True) -> Fleet:
    """Open the corpus of a fleet.

    Parameters
    ----------
    path : str or path
        Directory or URL of the fleet.
    check : bool
        Compare every file with its SHA-256 when it is first read, as `open_corpus` does.

    Returns
    -------
    Fleet
        The corpora of its feeders, by public name.

    Raises
    ------
    errors.DpPowerflowError
        There is no finished fleet at that place.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.open_fleet("release")
    Traceback (most recent call last):
        ...
    dp_powerflow.errors.CorpusError: ...release has no fleet.json that can be read; ...
    """
    from dp_powerflow.fleet.manifest import open_fleet

    return open_fleet(path, check=check)


def export_gridfm(
    releases: str | PathLike[str] | Sequence[str | PathLike[str]],
    directory: str | PathLike[str],
    *,
    variety: GridfmVariety | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> GridfmExport:
    """Write published twins into a folder that gridfm-graphkit trains on. Nothing private is read or spent.

    Parameters
    ----------
    releases : str or path, or a sequence of them
        Directories of releases on a twin whose tables are published, or of fleets of them.
    directory : str or path
        A new folder. It gets one folder per release and a configuration, `graphkit.yaml`.
    variety : GridfmVariety, optional
        Perturbed scenarios to add to every release: lines out, ties, other lines, loads and PV.
    on_progress : callable, optional
        Told how many scenarios are done, and of how many.

    Returns
    -------
    GridfmExport
        ``path``, ``config`` and what is there of every network.

    Raises
    ------
    errors.CorpusError
        A release has no tables, or the folder is there already; nothing was written.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> made = dpf.export_gridfm("tables", "graphs", variety=dpf.GridfmVariety(scenarios=16, seed=1))
    >>> made.networks[0].perturbed
    16
    """
    from dp_powerflow.corpus.gridfm.export import export_gridfm
    from dp_powerflow.fleet.manifest import release_paths

    given = [releases] if isinstance(releases, str | PathLike) else list(releases)
    paths = [found for path in given for found in release_paths(path)]
    return export_gridfm(paths, Path(directory), variety=variety, on_progress=on_progress)


# --- by hand: feeder, meters, model, twin, power flow ------------------------------------------------------
def open_feeder(
    source: str | PathLike[str],
    *,
    taps: TapTable | Sequence[Tap] | None = None,
    base_mva: float = 1.0,
    drop_islanded: bool = False,
) -> Feeder:
    """Open a feeder. PRIVATE, unless the network is a public one.

    Parameters
    ----------
    source : str or path
        ``"ieee13"``, ``"ieee123"``, an OpenDSS file (.dss), a pandapower net (.json) or ``"simbench:CODE"``.
    taps : sequence of Tap, optional
        Regulator taps, or a table of them as a tap file holds it. By default they are solved once at nominal
        load. Controls that act (`solve`) start from their own taps.
    base_mva : float
        Power base per phase [MVA].
    drop_islanded : bool
        Leave out nodes that no source feeds, instead of refusing the feeder.

    Returns
    -------
    Feeder
        Admittances [p.u.], loads, lines, and which nodes carry load.

    Raises
    ------
    errors.FeederError
        The source cannot be read, or is not a feeder that can be represented.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> feeder = dpf.open_feeder("ieee13")
    >>> len(feeder.retained), len(feeder.lines)
    (19, 12)
    """
    from dp_powerflow.grid.sources import open_feeder

    return open_feeder(str(source), taps=taps, base_mva=base_mva, drop_islanded=drop_islanded)


def inspect(feeder: Feeder) -> Inspection:
    """Summarise a feeder for its owner. INTERNAL: every figure describes the private network.

    Parameters
    ----------
    feeder : Feeder
        From `open_feeder`.

    Returns
    -------
    Inspection
        Counts, nominal load [kW, kvar], voltage range [p.u.], conditioning; what of the file is modelled,
        left out or refused; and the largest measured difference of voltages [p.u.] from OpenDSS, or
        pandapower, with the unchanged file: of the feeder as operated, and of its frozen frame.

    Raises
    ------
    errors.FeederError
        The reduced network does not exist, such as for a part that floats.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> summary = dpf.inspect(dpf.open_feeder("ieee13"))
    >>> summary.load_kw
    3466.0
    >>> summary.operated_error_pu < 1e-7, summary.same_states
    (True, '5 of 5')
    >>> summary.frozen_error_pu > 0.05  # taps of nominal load at a sixth of it
    True
    """
    from dp_powerflow._inspection import inspect_feeder

    return inspect_feeder(feeder)


def read_meters(
    path: str | PathLike[str],
    meters: MeterFormat,
    columns: LongColumns | WideColumns | None = None,
    *,
    services: str | PathLike[str] | None = None,
    days: tuple[dt.date, dt.date] | None = None,
) -> LoadHistory:
    """Read and check meter data. PRIVATE.

    Parameters
    ----------
    path : str or path
        A .csv or .parquet file, or a folder of Parquet files.
    meters : MeterFormat
        Declared unit, interval label, time zone and step.
    columns : LongColumns or WideColumns, optional
        `LongColumns` (default): one row per customer and interval. `WideColumns`: one column per customer.
    services : str or path, optional
        PUBLIC table of customers and load points. Without it every customer is a load point.
    days : pair of dates, optional
        First and last local day. By default all whole days of the file.

    Returns
    -------
    LoadHistory
        Loads (load point, day, step) [kW] without gaps; load points with too many gaps are left out.

    Raises
    ------
    errors.LoadDataError
        The file does not hold what was declared, or too many of its readings are unusable.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> meters = dpf.MeterFormat("kWh per interval", "start", "Europe/Zurich", step_minutes=15)
    >>> dpf.read_meters("no such file.csv", meters)
    Traceback (most recent call last):
        ...
    dp_powerflow.errors.LoadDataError: no such file.csv does not exist; check the path of the meter data
    """
    from dp_powerflow.loads.declared import WideColumns, read_service_map
    from dp_powerflow.loads.ingest import read_long, read_wide

    listed = None if services is None else read_service_map(Path(services))
    if isinstance(columns, WideColumns):
        return read_wide(Path(path), meters, columns, services=listed, days=days).history
    return read_long(Path(path), meters, columns, services=listed, days=days).history


def simulate_meters(
    load_points: int, *, days: int = 365, step_minutes: int = 15, seed: int = 0
) -> LoadHistory:
    """Simulate customers, for demonstrations, tests and public surrogates.

    Parameters
    ----------
    load_points : int
        Number of customers.
    days : int
        Days of history.
    step_minutes : int
        Length of a step [min]; it divides a day.
    seed : int
        Not secret: the same seed gives the same loads.

    Returns
    -------
    LoadHistory
        Marked as simulated; a model fitted to it says so.

    Raises
    ------
    errors.LoadDataError
        The sizes make no history.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> dpf.simulate_meters(20, days=3, step_minutes=60).load_kw.shape
    (20, 3, 24)
    """
    from dp_powerflow.loads.simulate import simulate_load_history

    return simulate_load_history(load_points, n_days=days, step_minutes=step_minutes, seed=seed)


def fit(
    history: LoadHistory, budget: Budget, *, key: StreamKey, options: FitOptions | None = None
) -> LoadModel:
    """Fit the differentially private load model: the one step that spends the customers' budget.

    This function keeps no account. A release does: it charges the ledger before it fits.

    Parameters
    ----------
    history : LoadHistory
        PRIVATE.
    budget : Budget
        ε, δ and the unit of privacy: what one record is.
    key : StreamKey
        Secret of the noise: ``StreamKey.from_system()``, or ``from_insecure_seed`` for a demonstration.
    options : FitOptions, optional
        Public choices, none tuned on the data. By default loads are relative to the public scales of the
        history, 0.001 to 3 times; without scales they lie between 1 W and 20 kW. Days are independent draws
        unless the options name another estimator.

    Returns
    -------
    LoadModel
        Publishable, with the cost of every query.

    Raises
    ------
    errors.LoadDataError
        Load points feed in, as with panels behind the meter; nothing was spent.
    errors.PrivacyError
        The budget or an option makes no sense for this history.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> history = dpf.simulate_meters(2000, days=5, step_minutes=60)
    >>> key = dpf.StreamKey.from_insecure_seed(1)
    >>> model = dpf.fit(history, dpf.Budget(2.0, 1e-6, unit="load-point"), key=key)
    >>> model.spent_epsilon <= 2.0
    True
    """
    from dp_powerflow.loads.history import MOST_EXPORT, find_export, refuse_export
    from dp_powerflow.model.fit import fit
    from dp_powerflow.model.options import FitOptions

    refuse_export(find_export(history.load_kw), MOST_EXPORT, "")
    if options is None:
        scaled = history.scale_kw is not None
        options = FitOptions(bounds=(1e-3, 3.0 if scaled else 20.0), use_scale=scaled)
    return fit(history, budget=budget, options=options, key=key)


def sample(
    model: LoadModel,
    feeder: Feeder,
    *,
    days: int,
    key: StreamKey,
    load_class: str | None = None,
    per: Literal["node", "load"] = "node",
    first_day: dt.date | None = None,
    weather: Weather | None = None,
) -> ComplexArray:
    """Draw synthetic loads for the nodes of a feeder, or for its loads. Free: the model is paid for.

    Every node, or load, with nominal power gets days of one class, scaled to its nominal power where the
    model is relative to a scale. Where the model is one of histories, it is one customer through all days.

    Parameters
    ----------
    model : LoadModel
        From `fit`, or ``LoadModel.load("release/model.json")``.
    feeder : Feeder
        Whose nodes or loads to draw for.
    days : int
        Days to draw.
    key : StreamKey
        Streams of the draws.
    load_class : str, optional
        Class of all of them; by default the first of the model.
    per : str
        ``"node"`` for `solve` in the fixed frame, ``"load"`` for `solve` with controls.
    first_day : date, optional
        Of a model of histories: date of the first day, which says what days are weekends; by default the
        first of January 2023.
    weather : Weather, optional
        Of a model of histories that was fitted with weather: the weather of the days drawn, such as
        ``corpus.weather``.

    Returns
    -------
    complex array (snapshot, retained node), or (snapshot, load)
        Power drawn [p.u.], ready for `solve`; the steps of a day follow each other.

    Raises
    ------
    errors.ConfigError
        `per` is neither "node" nor "load", or the weather lacks a day.
    errors.PrivacyError
        The model has no such class, or was fitted with weather and none is given.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> history = dpf.simulate_meters(2000, days=5, step_minutes=60)
    >>> key = dpf.StreamKey.from_insecure_seed(1)
    >>> model = dpf.fit(history, dpf.Budget(2.0, 1e-6, unit="load-point"), key=key)
    >>> feeder = dpf.open_feeder("ieee13")
    >>> dpf.sample(model, feeder, days=2, key=key).shape == (2 * 24, len(feeder.retained))
    True
    >>> loads = dpf.sample(model, feeder, days=2, key=key, per="load")
    >>> dpf.solve(feeder, loads, controls="day", steps=24).taps.shape  # a column for every regulator
    (48, 3)
    """
    import numpy as np

    from dp_powerflow.almanac.calendar import Calendar
    from dp_powerflow.config import FIRST_DAY
    from dp_powerflow.model.law import LoadNodes
    from dp_powerflow.model.sample import LoadSampler, LoadSource, days_per_block, placed_load
    from dp_powerflow.pipeline.customers import CustomerPlan
    from dp_powerflow.pipeline.inputs import Almanac

    if per not in ("node", "load"):
        raise ConfigError(f"loads are drawn per 'node' or per 'load', not per {per!r}")
    width = len(feeder.retained if per == "node" else feeder.loads)
    positions, nominal_kw = feeder.loaded_nodes() if per == "node" else feeder.drawn_loads()
    label, scale_kw = load_class or model.class_names[0], nominal_kw if model.scaled else None
    count, classes = len(positions), (label,) * len(positions)
    sampler: LoadSource
    if not model.is_history:
        law = model.at(LoadNodes(classes, scale_kw, feeder.base_mva, positions))
        sampler = LoadSampler(law, key, days)
    else:  # consecutive days, with the weekends that their dates say
        almanac = Almanac(Calendar.starting(first_day or FIRST_DAY, days), weather=weather)
        each = np.arange(count), classes, scale_kw, np.full(count, np.nan)
        customers = CustomerPlan(positions, *each, by_node=False)
        sampler = customers.source(model, feeder, key, days, days_per_block(count), almanac)
    blocks = (sampler.block(index) for index in range(sampler.n_blocks))
    return np.concatenate([placed_load(sampler.law, block, width) for block in blocks])


@dataclass(frozen=True, eq=False)
class DrawnTwin:
    """A twin of a network.

    Attributes
    ----------
    feeder : the network to solve on; publishable as far as the guarantee goes.
    guarantee : ε, δ and advantage for one changed element.
    record : the noisy integers that the twin is built from.
    """

    feeder: Feeder
    guarantee: TwinGuarantee
    record: Twin


def draw_twin(feeder: Feeder, design: TwinDesign, *, key: StreamKey) -> DrawnTwin:
    """Draw a twin, a copy of the network whose figures carry noise: what spends the network's budget.

    This function keeps no account. A release does: it charges the ledger before it draws. Drawing again
    until the twin looks good voids the guarantee.

    Parameters
    ----------
    feeder : Feeder
        PRIVATE. The true network.
    design : TwinDesign
        Which figures get noise, and how much.
    key : StreamKey
        Secret of the noise.

    Returns
    -------
    DrawnTwin

    Raises
    ------
    errors.PrivacyError
        The feeder has something that the twin would not protect.

    Examples
    --------
    >>> import dp_powerflow as dpf
    >>> feeder = dpf.open_feeder("ieee13")
    >>> key = dpf.StreamKey.from_insecure_seed(1)
    >>> twin = dpf.draw_twin(feeder, dpf.TwinDesign(epsilon=1.0, change=0.05), key=key)
    >>> round(twin.guarantee.epsilon, 2), round(twin.guarantee.advantage, 2)
    (1.0, 0.39)
    """
    from dp_powerflow.grid.sources import Rebuilder
    from dp_powerflow.twin.design import twin_guarantee
    from dp_powerflow.twin.draw import draw_twin, parameters_of

    source = Rebuilder(feeder, design.protected)
    record = draw_twin(parameters_of(source, design), design, key)
    return DrawnTwin(record.feeder(source), twin_guarantee(design), record)


@overload
def solve(
    feeder: Feeder,
    load: ComplexArray,
    generation: ComplexArray | None = None,
    *,
    all_nodes: bool = False,
    controls: None = None,
    steps: int | None = None,
) -> Solution: ...


@overload
def solve(
    feeder: Feeder,
    load: ComplexArray,
    generation: ComplexArray | None = None,
    *,
    all_nodes: bool = False,
    controls: ControlMode,
    steps: int | None = None,
) -> OperatedSolution: ...


def solve(
    feeder: Feeder,
    load: ComplexArray,
    generation: ComplexArray | None = None,
    *,
    all_nodes: bool = False,
    controls: ControlMode | None = None,
    steps: int | None = None,
) -> Solution:
    """Solve AC power flow for many snapshots at once.

    Without `controls` the network is a fixed frame: taps stay, every load is constant power at its nodes.
    With them the feeder is solved as it is operated: loads one by one, by the connection and the model of
    their file; regulators, capacitor controls and inverters with curves act.

    Parameters
    ----------
    feeder : Feeder
        The network.
    load : complex array (snapshot, retained node), or (snapshot, load) with `controls`
        Power drawn [p.u. of ``feeder.base_mva`` per phase], in the order of ``feeder.retained``, or of
        ``feeder.loads``: what a load draws at its rated voltage.
    generation : complex array (snapshot, retained node), or (snapshot, PV system) with `controls`, optional
        Power fed in [p.u.], in the order of ``feeder.retained``, or of ``feeder.pv``.
    all_nodes : bool
        Return the voltages of every energised node instead of the retained ones.
    controls : str, optional
        ``"frozen"``: taps and capacitors stay where the feeder has them. ``"snapshot"``: they move, and
        every snapshot starts from a table by load level. ``"day"``: every day does, and keeps its taps from
        step to step.
    steps : int, optional
        Snapshots of one day; ``controls="day"`` needs it.

    Returns
    -------
    Solution
        Voltages [p.u.]; snapshots without a solution are marked, and NaN. With `controls` an
        `OperatedSolution`: also taps (steps away from neutral) and capacitors (1 closed, 0 open).

    Raises
    ------
    errors.PowerFlowError
        The arrays do not fit the feeder, or hold figures that are no load; or its file has a setting that
        cannot be solved as operated.

    Examples
    --------
    >>> import numpy as np
    >>> import dp_powerflow as dpf
    >>> feeder = dpf.open_feeder("ieee13")
    >>> nominal = -feeder.nominal_injection[feeder.retained]
    >>> solution = dpf.solve(feeder, np.array([0.5 * nominal, nominal]))
    >>> solution.v.shape, solution.n_failed
    ((2, 19), 0)

    As operated, the three regulators raise the voltage more at full load than at half of it:

    >>> levels = np.array([[0.5], [1.0]])
    >>> operated = dpf.solve(feeder, levels * feeder.nominal_load, controls="snapshot")
    >>> operated.taps.tolist()
    [[5, 4, 4], [9, 7, 9]]
    """
    from dp_powerflow.powerflow.batch import BatchSolver
    from dp_powerflow.powerflow.operated import OperatedSolver

    nodes: Literal["all", "retained"] = "all" if all_nodes else "retained"
    if controls is None:
        return BatchSolver(feeder).solve(load, generation, nodes=nodes)
    if controls == "day" and steps is None:
        raise PowerFlowError('controls = "day" needs steps, the number of snapshots of one day')
    return OperatedSolver(feeder, controls=controls, steps=steps or 1).solve(load, generation, nodes=nodes)
