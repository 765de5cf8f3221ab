"""The docs site as MkDocs builds it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.pages_that_run import ROOT


@dataclass(frozen=True)
class Site:
    """The built site and what MkDocs said while it was built."""

    folder: Path
    exit_code: int
    said: str

    def html(self, page: str) -> str:
        """The built page of a page of the docs, such as 'how-to/fleet.md'."""
        return (self.folder / page).with_suffix(".html").read_text(encoding="utf-8")


def build_site(folder: Path) -> Site:
    """Build the site as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    return Site(folder, done.returncode, done.stdout + done.stderr)
