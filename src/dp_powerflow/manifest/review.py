"""What reviewers ask of a release, with the answers of its files; the words are in `templates/review.txt`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from dp_powerflow.corpus.reader import open_corpus
from dp_powerflow.corpus.storage import Location
from dp_powerflow.manifest import render
from dp_powerflow.manifest.model import ReleaseError
from dp_powerflow.manifest.signatures import accepted, signatures_at
from dp_powerflow.manifest.verify import VerifyReport, read_manifest
from dp_powerflow.privacy.budget import rho_to_epsilon

SECTIONS = {
    "board": "Summary for a board",
    "nist": "NIST SP 800-226, from the top of its pyramid down",
    "w3c": "W3C, considerations for reviewing differential privacy systems",
    "gdpr": "GDPR: singling out, linkability, inference",
    "aggregation": "Aggregation rules",
}
_SERVICES = (2, 5, 10)


@dataclass(frozen=True)
class Review:
    """The filled-in checklist of a release.

    Attributes
    ----------
    release_id, verdict : of the release, and what `verify` says.
    sections : title → rows of question, answer, and where the answer is checked.
    """

    release_id: str
    verdict: str
    sections: dict[str, list[tuple[str, str, str]]]

    def to_html(self) -> bytes:
        """The page of the checklist."""
        return render.rendered("review.html", self.sections, {"release_id": self.release_id, "review": self})


def review(place: Location, report: VerifyReport, signers: Sequence[str] = ()) -> Review:
    """The checklist of a release, given what `verify` has found.

    Parameters
    ----------
    signers : public keys that are known to the reader.

    Raises
    ------
    ReleaseError : its manifest cannot be read, or is not the one that was verified.
    """
    manifest, digest = read_manifest(place)
    if digest != report.manifest_sha256:
        raise ReleaseError(f"{place} changed while it was read; review it again")
    loads = manifest.guarantee.loads
    signed = accepted(signatures_at(place), digest).values()
    figures = render.figures_of(manifest) | {
        "report": report,
        "seen": render.quality_of_release(open_corpus(place)).voltages if report.intact else None,
        "persons": [(k, rho_to_epsilon(k * k * loads.rho, loads.delta)) for k in _SERVICES],
        "signers": [f"{each.who}{'' if each.public_key in signers else ', not compared'}" for each in signed],
    }
    text = files("dp_powerflow.manifest").joinpath("templates", "review.txt").read_text("utf-8")
    words = render.Words(f'{{% extends "{type(manifest.guarantee.network).template}" %}}\n{text}', figures)
    rows = {title: [_row(item) for item in words[part]] for part, title in SECTIONS.items()}
    return Review(manifest.release.id, report.verdict, rows)


def _row(item: str) -> tuple[str, str, str]:
    question, answer, checked = (cell.strip() for cell in item.split(" | "))
    return question, answer, checked
