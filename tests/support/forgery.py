"""A forger who changes a release and makes every page, hash and digest fit, in memory."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow.manifest.build import Facts, assemble
from dp_powerflow.manifest.model import MALFORMED, canonical_json, digest_of, parse_manifest, seal
from dp_powerflow.manifest.render import (
    card_bytes,
    certificate_html,
    croissant_bytes,
    quality_page,
    registry_bytes,
)
from dp_powerflow.manifest.verify import (
    SEED,
    Opened,
    check_release,
    manifest_content,
    open_release,
    understand,
)

PAGES = ("certificate.html", "registry.yaml", "README.md", "croissant.json", "quality.html")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pages(manifest: dict[str, Any], opened: Opened) -> dict[str, bytes]:
    """The pages that a manifest determines; none if it cannot be read."""
    try:
        stated = parse_manifest(manifest)
        shown = quality_page(opened.directory, opened.corpus, opened.hashes, stated) or b""
        manifest["files"]["quality.html"] = sha256(shown)
        made = certificate_html(stated), registry_bytes(stated), card_bytes(stated)
        return dict(zip(PAGES, (*made, croissant_bytes(stated, manifest["files"]), shown), strict=True))
    except MALFORMED:
        return {}


@dataclass(frozen=True, eq=False)
class Forger:
    """An intact release, read once; without `pages` he leaves them alone, for tests that look elsewhere."""

    opened: Opened
    pages: bool = True

    @classmethod
    def of(cls, path: Path) -> Forger:
        return cls(open_release(path, manifest_content(path)))

    @property
    def manifest(self) -> dict[str, Any]:
        return copy.deepcopy(self.opened.raw)

    @property
    def model(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.opened.small["model.json"])
        return fields

    def found(self, manifest: dict[str, Any], model: bytes | None = None) -> set[str]:
        """Names of the checks that fail though pages, hashes and digest were made to fit."""
        small, hashes = dict(self.opened.small), dict(self.opened.hashes)
        if model is not None:
            small["model.json"] = model
        if isinstance(manifest.get("files"), dict):
            manifest = manifest | {"files": dict(manifest["files"])}
            if model is not None:
                manifest["files"]["model.json"] = sha256(model)
            if self.pages:
                small |= _pages(manifest, self.opened)
                manifest["files"] |= {name: sha256(small[name]) for name in PAGES}
        hashes |= {name: sha256(content) for name, content in small.items()}
        manifest["manifest_sha256"] = digest_of(manifest)
        content = canonical_json(manifest)
        hashes["manifest.json"] = sha256(content)
        opened = understand(self.opened.directory, content, self.opened.corpus, hashes, small)
        return {check.name for check in check_release(opened).failures} - {SEED}

    def found_of(self, facts: Facts, model: bytes | None = None) -> set[str]:
        """The same of a release whose every sentence and figure follows from changed facts."""
        try:
            statement = assemble(facts)
        except MALFORMED:
            return {"cannot be stated"}
        files = self.opened.raw["files"]
        return self.found(json.loads(seal(statement, files).to_bytes()), model)
