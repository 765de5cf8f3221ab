"""What every derived release begins with: the manifest of a release, a study of it, and a public sun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from dp_powerflow.corpus.reader import Corpus
from dp_powerflow.corpus.storage import Location
from dp_powerflow.corpus.tables import Connections
from dp_powerflow.derived.study import Study
from dp_powerflow.errors import ConfigError, PrivacyError
from dp_powerflow.model.sample import OneDay, solve_days
from dp_powerflow.pipeline.deriving import manifest as derived_manifest
from dp_powerflow.pipeline.deriving.manifest import Origin
from dp_powerflow.pipeline.manifest.model import (
    DIGEST,
    MANIFEST_FILE,
    Manifest,
    ReleaseError,
    Section,
    canonical_json,
    digest_of,
    json_object,
)
from dp_powerflow.pipeline.manifest.policy import registered
from dp_powerflow.pipeline.opened import parsed_manifest
from dp_powerflow.powerflow.sun import DAYS_OF_YEAR, clear_sky
from dp_powerflow.units import FloatArray

STUDY = "study"
"""Table of the settings that is for the study, whatever its kind."""
DEFAULT_LATITUDE = 45.0
AGREE_PU = 2e-5
"""Voltages of study and release may differ by this [p.u.]: rounding, and switches merged in tables."""
ON_THE_TRUE_NETWORK = (
    "release '{id}' was solved on the true network, and figures computed on it, such as hosting capacity, "
    "give the resistances of its paths back to who inverts them; derive from a release of mode "
    "'twin-network' (experiments may use a public true network)"
)


class StudySettings(Section):
    """Public settings of every study.

    Attributes
    ----------
    latitude_deg : of the clear sky over new PV, where the release declares no irradiance [degrees].
    """

    latitude_deg: Annotated[float, Field(ge=-90.0, le=90.0)] = DEFAULT_LATITUDE


@dataclass(frozen=True)
class Settings:
    """Public settings: of the study, and of the kind."""

    study: StudySettings
    kind: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Settings:
        """Settings as a file or a caller gives them; the table `study` is for every kind.

        Raises
        ------
        ConfigError : a setting of the study is unknown or out of range.
        """
        rest = dict(given or {})
        own = rest.pop(STUDY, {})
        try:
            return cls(StudySettings.model_validate(own), rest)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join([STUDY, *(str(part) for part in first["loc"])])
            raise ConfigError(f"setting {where} cannot be used: {first['msg']}") from None


@dataclass(frozen=True, eq=False, repr=False)
class Basis:
    """A release and a study of it.

    Attributes
    ----------
    content, source : the file `manifest.json` of the release, and the manifest in it.
    derived_from : what the study was read from.
    settings : of the study.
    irradiance : in words, where the irradiance of new PV comes from.
    """

    content: bytes
    source: Manifest[Any]
    derived_from: Origin
    settings: StudySettings
    irradiance: str
    study: Study

    def described(self) -> derived_manifest.Study:
        """The study as the manifest describes it."""
        study = self.study
        return derived_manifest.Study(
            days=study.days,
            steps_per_day=study.steps,
            nodes=len(study.released),
            loads=len(study.feeder.loads),
            latitude_deg=self.settings.latitude_deg,
            irradiance=self.irradiance,
        )


def derivable_manifest(directory: Location, content: bytes) -> Manifest[Any]:
    """The manifest of a release that figures may be derived from, given its file.

    Raises
    ------
    ReleaseError : it was changed after the release, or is of an earlier version.
    PrivacyError : the release was not solved on a twin.
    """
    source = parsed_manifest(directory, content)[0]
    raw = json_object(content)
    if canonical_json(raw) != content or raw.get(DIGEST) != digest_of(raw):
        raise ReleaseError(f"{directory / MANIFEST_FILE} was changed after the release; fetch it again")
    refuse_underivable(source)
    return source


def refuse_underivable(manifest: Manifest[Any]) -> None:
    """Refuse a release whose network is not a twin."""
    if not registered(manifest.guarantee.network.mode).derivable:
        raise PrivacyError(ON_THE_TRUE_NETWORK.format(id=manifest.release.id))


def clear_sky_year(settings: StudySettings, steps: int, first_day: int) -> tuple[FloatArray, str]:
    """(day, step) irradiance of a public year without clouds, and words for it.

    Parameters
    ----------
    first_day : day of the year that the first day of the release is.
    """
    sun = clear_sky(settings.latitude_deg, DAYS_OF_YEAR, steps, first_day)
    return sun, in_words(settings)


def in_words(settings: StudySettings) -> str:
    """The clear sky of the settings."""
    return f"a clear sky at latitude {settings.latitude_deg!r} degrees, declared public"


def refuse_another_scene(study: Study, corpus: Corpus) -> None:
    """Compare with the release: its days and connections, and the voltages of the first day, solved again.

    Raises
    ------
    ReleaseError : the release holds others.
    """
    if study.days > corpus.layout.days or not _same(study.connections, corpus.connections):
        raise ReleaseError(
            f"release '{corpus.release_id}' has other days or connections than its config asks for now; "
            "restore the config as it was when the release was made"
        )
    solver = study.make_solver(None)
    made = solve_days(
        solver, OneDay(study.source, 0), generation=study.generation, nodes="all", mend=study.mends
    )
    at = np.searchsorted(study.feeder.energised, study.released)
    released = corpus.voltages([0])[0]
    same_shape = made.v[0].shape[0] == released.shape[0] and len(at) == released.shape[1]
    if not same_shape or not np.abs(made.v[0][:, at] - released).max() < AGREE_PU:
        raise ReleaseError(
            f"release '{corpus.release_id}' holds other voltages than its loads give on its network; restore "
            "the config, the files it names and the private state as they were when it was made"
        )


def _same(one: Connections | None, other: Connections | None) -> bool:
    """Whether the same is published of two networks: a study may show no bus that the release hides."""
    if one is None or other is None:
        return one is other
    places = (one.coordinates, other.coordinates)
    return (
        (one.bus_ids, one.kinds) == (other.bus_ids, other.kinds)
        and all(
            np.array_equal(getattr(one, name), getattr(other, name))
            for name in ("bus_of", "phase", "pairs", "source")
        )
        and (places[0] is None) == (places[1] is None)
        and (places[0] is None or places[1] is None or np.array_equal(places[0], places[1]))
    )
