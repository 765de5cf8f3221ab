"""What the files of a corpus look like: shape, Arrow schemas, and where each day is."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from dp_powerflow._names import RELEASE_ID, RELEASE_ID_RULE
from dp_powerflow.errors import CorpusError

FORMAT = "1"
"""Version of the layout on disk."""
DATA = "data"
NODES_FILE = "nodes.parquet"
MANIFEST_FILE = "manifest.json"
"""Written last: at a URL it says that the release is complete."""

GROUP_PHASORS = 1 << 17
"""Phasors per Parquet row group: about 1 MB decoded, so that one day is cheap to fetch."""

VM_GRID = "multiples of 1e-6 p.u."
VA_GRID = "multiples of 1e-5 degrees; even multiples from 128 degrees on"

PUBLIC_COLUMNS = {"phase": pa.int32(), "base_kv": pa.float64(), "bus": pa.string()}
"""What `nodes.parquet` may say of a node when it is declared public."""

_PREFIX = "dp_powerflow."
_INT32_MAX = 2**31 - 1
_PART_NAME = re.compile(r"part-(\d{5,})\.parquet")


@dataclass(frozen=True)
class CorpusLayout:
    """Shape of a corpus and how its days are split into files.

    Attributes
    ----------
    days : number of days, numbered from 0.
    steps : time steps per day, T.
    nodes : number of released nodes.
    days_per_part : days per file; the last part may hold fewer.
    """

    days: int
    steps: int
    nodes: int
    days_per_part: int

    def __post_init__(self) -> None:
        for name in ("days", "steps", "nodes", "days_per_part"):
            if not 1 <= getattr(self, name) <= _INT32_MAX:
                raise CorpusError(f"the layout of a corpus needs a positive number of {name}")

    @property
    def n_parts(self) -> int:
        return -(-self.days // self.days_per_part)

    @property
    def n_phasors(self) -> int:
        return self.days * self.steps * self.nodes

    @property
    def days_per_group(self) -> int:
        """Days per Parquet row group: a function of the shape alone, so that bytes are."""
        return max(1, GROUP_PHASORS // (self.steps * self.nodes))

    def days_of(self, part: int) -> range:
        """Days in a part."""
        if not 0 <= part < self.n_parts:
            raise CorpusError(f"the corpus has parts 0 to {self.n_parts - 1}, there is no part {part}")
        first = part * self.days_per_part
        return range(first, min(first + self.days_per_part, self.days))

    def groups_of(self, part: int) -> list[range]:
        """Days in each row group of a part."""
        days, width = self.days_of(part), self.days_per_group
        return [days[start : start + width] for start in range(0, len(days), width)]

    def locate(self, day: int) -> tuple[int, int]:
        """Part and row group that hold a day."""
        part, offset = divmod(day, self.days_per_part)
        return part, offset // self.days_per_group


def part_name(part: int) -> str:
    """File name of a part inside `data/`."""
    return f"part-{part:05d}.parquet"


def part_number(name: str) -> int | None:
    """Number of the part with this file name, None if it is not the name of a part."""
    match = _PART_NAME.fullmatch(name)
    if match is None or part_name(int(match[1])) != name:
        return None
    return int(match[1])


def part_schema(layout: CorpusLayout, release_id: str, part: int) -> pa.Schema:
    """Schema of `data/part-*.parquet`: one row per (day, node), T values per list."""
    series = pa.list_(pa.field("element", pa.float32(), nullable=False), layout.steps)
    fields = [
        pa.field("day", pa.int32(), nullable=False),
        pa.field("node", pa.int32(), nullable=False, metadata={"is": f"row of {NODES_FILE}"}),
        pa.field("vm_pu", series, nullable=False, metadata={"unit": "p.u.", "grid": VM_GRID}),
        pa.field("va_deg", series, nullable=False, metadata={"unit": "degree", "grid": VA_GRID}),
    ]
    return pa.schema(fields, metadata=_metadata(layout, release_id) | {f"{_PREFIX}part": str(part)})


def nodes_schema(layout: CorpusLayout, release_id: str, columns: list[str]) -> pa.Schema:
    """Schema of `nodes.parquet`: row k describes node k; `columns` of `PUBLIC_COLUMNS` are there."""
    fields = [
        pa.field("node", pa.int32(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        *(pa.field(name, PUBLIC_COLUMNS[name], nullable=False) for name in columns),
    ]
    return pa.schema(fields, metadata=_metadata(layout, release_id))


def read_metadata(metadata: dict[bytes, bytes] | None) -> tuple[CorpusLayout, str]:
    """Layout and release id from the metadata of any file of a corpus.

    Raises
    ------
    KeyError, ValueError : an entry is missing or not a number.
    CorpusError : written by another version of the layout.
    """
    entries = {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    version = entries[f"{_PREFIX}format"]
    if version != FORMAT:
        raise CorpusError(
            f"the corpus has format {version[:20]} and this program reads format {FORMAT}; "
            "use the version of dp-powerflow that its manifest names"
        )
    shape = {name: int(entries[_PREFIX + name]) for name in ("days", "steps", "nodes", "days_per_part")}
    return CorpusLayout(**shape), check_release_id(entries[f"{_PREFIX}release_id"])


def check_release_id(release_id: str) -> str:
    """A release id that can be part of a file name, or an error."""
    if not re.fullmatch(RELEASE_ID, release_id):
        raise CorpusError(RELEASE_ID_RULE)
    return release_id


def _metadata(layout: CorpusLayout, release_id: str) -> dict[str, str]:
    entries = {
        "format": FORMAT,
        "release_id": release_id,
        "days": str(layout.days),
        "steps": str(layout.steps),
        "nodes": str(layout.nodes),
        "days_per_part": str(layout.days_per_part),
    }
    return {_PREFIX + key: value for key, value in entries.items()}
