"""Which build this is: the public version, and the commit that it was made from.

The public version (`_names.__version__`) is the only one that enters a request, a ledger or a released byte:
it is the same for all commits up to the next version, so that a release begun before an update goes on after
it. The commit is for people, and for the check that all workers of a cluster have the same code.

    0.6.0                     made from the commit with the tag v0.6.0, or where nobody knows the commit
    0.6.0+g1a2b3c4d5          made from this commit
    0.6.0+g1a2b3c4d5.dirty    from this commit with changes

`setup.py` asks here too, so what is installed and what runs from a checkout agree. Nothing is imported but
the standard library, and this module only by who asks for the version.
"""

from __future__ import annotations

from pathlib import Path

from dp_powerflow._names import __version__ as public_version

PACKAGE = "dp-powerflow"
_GIT_SECONDS = 10
_DIGITS = 9


def full_version() -> str:
    """The version of the package that is running, with its commit where that is known."""
    here = Path(__file__).resolve()
    if here.parents[1].name == "src" and (here.parents[2] / "pyproject.toml").is_file():
        return source_version(here.parents[2])  # metadata of an editable install are of an earlier commit
    from importlib import metadata

    try:
        return _if_public(metadata.version(PACKAGE))
    except metadata.PackageNotFoundError:
        return public_version


def source_version(root: Path) -> str:
    """The version of a source tree: of git if it is a checkout, else as an sdist states it.

    A checkout needs no tags and no history. Where git is missing or refuses, the public version stands alone.

    Parameters
    ----------
    root : the folder of `pyproject.toml`.
    """
    if (root / ".git").exists():  # its own: an sdist may lie within another repository
        return _git_version(root)
    try:
        lines = (root / "PKG-INFO").read_text(encoding="utf-8").splitlines()
    except OSError:
        return public_version
    stated = (line.removeprefix("Version:").strip() for line in lines if line.startswith("Version:"))
    return _if_public(next(stated, public_version))


def _git_version(root: Path) -> str:
    commit = _git(root, "describe", "--always", "--dirty", f"--abbrev={_DIGITS}", "--exclude=*")
    if not commit:
        return public_version
    if f"v{public_version}" in _git(root, "tag", "--points-at", "HEAD").split() and "-" not in commit:
        return public_version
    return f"{public_version}+g{commit.replace('-', '.')}"


def _git(root: Path, *arguments: str) -> str:
    """What git prints, nothing if it fails."""
    import os
    import subprocess

    # A hook of git sets variables that point to the repository of the hook.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=own, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _if_public(version: str) -> str:
    """A recorded version, unless it is of another public version than this code."""
    return version if version.partition("+")[0] == public_version else public_version


__version__ = full_version()
