"""`demo`: the whole job on the built-in feeder and simulated customers."""

from __future__ import annotations

import tomllib
from pathlib import Path

from dp_powerflow.config import Config, parse_config
from dp_powerflow.errors import ConfigError
from dp_powerflow.pipeline.setup.example import example

SEED = 1


def demo_config(folder: Path) -> Config:
    """The example config with everything below one folder, and a seed instead of a secret key."""
    if folder.exists():
        raise ConfigError(f"{folder} exists already; name another folder with --out, or remove it")
    raw = tomllib.loads(example())
    raw["release"]["insecure_seed"] = SEED
    return parse_config(raw, base=folder.resolve())


def closing_words(config: Config) -> str:
    """What to open, and what to try next."""
    release, state = config.release.output, config.release.state
    return f"""
The loads are **simulated** and the noise comes from a **seed**: this is a demonstration, not a release.

Open
- `{release / "certificate.html"}` — the page for a privacy officer
- `{release / "manifest.json"}` — the same for machines
- `{state / "internal" / config.release.id}` — what only the data owner may see

Try next
- `dp-powerflow verify {release}` — recompute what a third party can
- `dp-powerflow ledger {state}` — what has been spent
- `dp-powerflow init` — a config of your own, then `plan`, `release`
"""
