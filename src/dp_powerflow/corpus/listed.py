"""Files of a release against the SHA-256 that its manifest lists, each when it is first read.

The bytes that are hashed are the bytes that are decoded: a file is read once. What was found sound is known
to the process until the file changes (size, times and number of a local file, what a store says of an
object), so that a second pass over a corpus hashes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dp_powerflow._threads import in_order
from dp_powerflow.almanac.calendar import Calendar
from dp_powerflow.almanac.weather import FEATURES, MEANS, UNITS, Weather
from dp_powerflow.corpus.parquet import numbers
from dp_powerflow.corpus.schema import MANIFEST_FILE, PARQUET, CorpusLayout, metadata_of
from dp_powerflow.corpus.storage import Location, RemotePath, file_hash, loading, open_parquet, readers_of
from dp_powerflow.errors import ConfigError, CorpusError

WHOLE_BYTES = 256 << 20
"""Files up to this size are hashed and decoded from the same memory; larger ones are hashed in pieces."""
KEPT_BYTES = 128 << 20
"""Of objects of a store that stay in memory, so that the next row group is not fetched again."""

Version = tuple[int, ...] | str
"""What changes when a file does."""

_sound: dict[str, tuple[Version, str]] = {}
"""Place → version of a file that was hashed in this process, and its SHA-256."""
_fetched: OrderedDict[str, tuple[Version, bytes]] = OrderedDict()
"""Objects of stores that were used last."""


@dataclass(frozen=True)
class Listed:
    """The files of a release, as its manifest lists them.

    Attributes
    ----------
    root : directory or URL of the release.
    hashes : SHA-256 by relative path; None checks nothing.
    """

    root: Location
    hashes: Mapping[str, str] | None = field(default=None, repr=False)

    def source(self, name: str) -> Location | pa.BufferReader:
        """What a file is parsed from: its bytes, if they had to be hashed, or its place.

        Raises
        ------
        CorpusError : it is not the file that the manifest lists.
        """
        place = self.root / name
        expected = self._expected(name)
        if expected is None:
            return place
        with loading(place):
            version = version_of(place)
            if _sound.get(str(place)) == (version, expected):
                kept = _fetched.get(str(place))
                return pa.BufferReader(kept[1]) if kept is not None and kept[0] == version else place
            content = place.read_bytes() if _size(place, version) <= WHOLE_BYTES else None
            found = file_hash(place) if content is None else hashlib.sha256(content).hexdigest()
        if found != expected:
            raise CorpusError(
                f"{place} is damaged: it is not the file that {MANIFEST_FILE} lists; fetch it again"
            )
        _sound[str(place)] = version, found
        if content is None:
            return place
        if isinstance(place, RemotePath):
            _keep(place, version, content)
        return pa.BufferReader(content)

    def has(self, name: str) -> bool:
        """Whether there is such a file, or should be."""
        return (self.root / name).exists() if self.hashes is None else name in self.hashes

    def check(self, names: Iterable[str]) -> None:
        """Make sure of many files before somebody else reads them, on all cores; raises as `source`."""
        for _ in in_order(self.source, names if self.hashes is not None else (), readers_of(self.root)):
            pass

    def check_folder(self, folder: str) -> None:
        """The same of all files below a folder."""
        self.check(name for name in self.hashes or () if name.startswith(f"{folder}/"))

    def mark(self, name: str) -> int:
        """A number of a local file as it is now, for processes that tell each other what is sound; or 0."""
        place = self.root / name
        if self._expected(name) is None or isinstance(place, RemotePath):
            return 0
        with loading(place):
            words = f"{version_of(place)}".encode()
        return int.from_bytes(hashlib.sha256(words).digest()[:7], "little") + 1

    def accept(self, name: str) -> None:
        """Another process found the file sound as it is now."""
        place, expected = self.root / name, self._expected(name)
        if expected is not None:
            _sound[str(place)] = version_of(place), expected

    def _expected(self, name: str) -> str | None:
        if self.hashes is None:
            return None
        if name not in self.hashes:
            raise CorpusError(
                f"{self.root / name} is not a file of the release: {MANIFEST_FILE} does not list it"
            )
        return self.hashes[name]


def read_listed(root: Location, *, sha256: str | None = None) -> Listed:
    """The list of a release; one without a manifest, or whose manifest lists no files, is not checked.

    Parameters
    ----------
    sha256 : of `manifest.json`, where something else states it.

    Raises
    ------
    CorpusError : the manifest is damaged.
    """
    place = root / MANIFEST_FILE
    try:
        content = place.read_bytes()
    except FileNotFoundError:
        return Listed(root)
    except OSError:
        with loading(place):
            raise
    damaged = CorpusError(f"{place} is damaged; fetch it again, then check with: dp-powerflow verify")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise damaged
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        raise damaged from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if files is None:
        return Listed(root)
    if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
        raise damaged
    return Listed(root, files)


def version_of(place: Location) -> Version:
    """What changes when the file does; OSError if there is none."""
    if isinstance(place, RemotePath):
        return place.version()
    found = os.stat(place)
    return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _size(place: Location, version: Version) -> int:
    """Of a local file; an object of a store is fetched whole."""
    return 0 if isinstance(version, str) else version[0]


def _keep(place: RemotePath, version: Version, content: bytes) -> None:
    held = sum(len(known) for _, known in _fetched.values()) + len(content)
    while _fetched and held > KEPT_BYTES:
        held -= len(_fetched.popitem(last=False)[1][1])
    if held <= KEPT_BYTES:
        _fetched[str(place)] = version, content


DAYS_FILE = "days.parquet"


@dataclass(frozen=True, eq=False)
class DayTable:
    """The days of a corpus.

    Attributes
    ----------
    calendar : consecutive days.
    weather : of exactly these days; None without.
    """

    calendar: Calendar
    weather: Weather | None = None

    def __post_init__(self) -> None:
        if not self.calendar.is_consecutive:
            raise CorpusError(
                "the days of a corpus follow one another; a calendar with holes is of no corpus"
            )
        if self.weather is not None and self.weather.days != self.calendar.days:
            raise CorpusError("the weather of a corpus is that of its days; leave other days out")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures of the weather; none without."""
        return () if self.weather is None else self.weather.names

    @cached_property
    def holiday(self) -> list[bool]:
        """(day,) whether it is a holiday, which may be a Saturday or Sunday too."""
        return [day in self.calendar.holidays for day in self.calendar.days]


class DayColumn(NamedTuple):
    """A column of the file: name, Arrow type, unit and meaning."""

    name: str
    type: pa.DataType
    unit: str | None
    means: str


def columns_of_days(weather: tuple[str, ...]) -> Iterator[DayColumn]:
    """The columns, with these figures of the weather."""
    yield DayColumn("day", pa.int32(), None, "number of the day, from 0")
    yield DayColumn("date", pa.date32(), None, "local date of the day")
    yield DayColumn("holiday", pa.bool_(), None, "whether it is a declared holiday")
    yield DayColumn("off", pa.bool_(), None, "whether it is a Saturday, a Sunday or a holiday")
    for name in weather:
        yield DayColumn(name, pa.float64(), UNITS[name], MEANS[name])


def days_schema(layout: CorpusLayout, release_id: str, weather: tuple[str, ...]) -> pa.Schema:
    """Schema of the file."""
    fields = [
        pa.field(
            column.name, column.type, nullable=False, metadata={"unit": column.unit} if column.unit else None
        )
        for column in columns_of_days(weather)
    ]
    return pa.schema(fields, metadata=metadata_of(layout, release_id))


def encode_days(layout: CorpusLayout, release_id: str, days: DayTable) -> bytes:
    """Bytes of the file."""
    calendar = days.calendar
    if calendar.n_days != layout.days:
        raise CorpusError(f"the corpus has {layout.days} days and the calendar {calendar.n_days}")
    values = [] if days.weather is None else list(days.weather.values.T)
    columns = [range(layout.days), calendar.days, days.holiday, calendar.off, *values]
    schema = days_schema(layout, release_id, days.names)
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET)
    return bytes(sink.getvalue())


def read_days(
    directory: Location,
    layout: CorpusLayout,
    release_id: str,
    content: Location | pa.BufferReader | None = None,
) -> DayTable | None:
    """The days of a corpus, None where they have no dates; from the bytes of the file if they were read.

    Raises
    ------
    CorpusError : the file is damaged, or of another corpus, or its columns contradict each other.
    """
    path = directory / DAYS_FILE
    with loading(path):
        if content is None and not path.exists():
            return None
        with open_parquet(content or path, page_checksum_verification=True) as file:
            table = file.read(use_threads=False)
        weather = tuple(name for name in FEATURES if name in table.column_names)
        if not table.schema.equals(days_schema(layout, release_id, weather), check_metadata=True):
            raise ValueError("columns, types or metadata are not those of a corpus")
        try:
            return _days_of(table, layout, weather)
        except (ConfigError, CorpusError) as error:  # of a calendar or weather that cannot be
            raise ValueError(str(error)) from None


def _days_of(table: pa.Table, layout: CorpusLayout, weather: tuple[str, ...]) -> DayTable:
    dates, holiday, off = (table.column(name).to_pylist() for name in ("date", "holiday", "off"))
    if table.column("day").to_pylist() != list(range(layout.days)):
        raise ValueError("not one row per day in order")
    calendar = Calendar(
        tuple(dates), frozenset(day for day, is_one in zip(dates, holiday, strict=True) if is_one)
    )
    if calendar.off.tolist() != off:
        raise ValueError("a day off is not marked, or another day is")
    if not weather:
        return DayTable(calendar)
    values = np.stack([numbers(table.column(name)) for name in weather], axis=1)
    found = Weather(calendar.days, weather, values)
    if not found.is_consistent:
        raise ValueError("figures of the weather that contradict each other")
    return DayTable(calendar, found)
