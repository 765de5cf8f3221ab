"""A crew of the workers of a Dask cluster.

Job, requests and answers travel as data beside the task graph: the scheduler and its dashboard see names
`feeder-step-<random>` and the word PRIVATE.
"""

from __future__ import annotations

import pickle
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow._parallel.processes import Answer, CrewJob, OnTold, Work, attempted
from dp_powerflow.errors import DpPowerflowError, require

EXTRA = "cluster"
TRIES = 3
"""Times to send something while workers are being lost, and to ask again for what was lost with them."""
FIRST = 1
"""Priority of work that was begun: its worker holds it in memory."""


class Parcel:
    """PRIVATE. Something on its way, read where it is needed; it says nothing but that."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @classmethod
    def of(cls, thing: object) -> Parcel:
        return cls(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))

    def opened(self) -> Any:
        return pickle.loads(self._content)  # made by `of` in this run # nosec B301

    def __repr__(self) -> str:
        return "Parcel(PRIVATE)"

    def __reduce__(self) -> tuple[type[Parcel], tuple[bytes]]:
        return type(self), (self._content,)


class ParcelledJob(Parcel):
    """PRIVATE. A job, and on a worker what it keeps from one request to the next, for every thread."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._own, self._starting = threading.local(), threading.Lock()

    def work(self) -> Work:
        """The function of this thread; they are prepared one after the other."""
        if not hasattr(self._own, "work"):
            with self._starting:
                self._own.work = self.opened().start(1)
        work: Work = self._own.work
        return work


@dataclass(frozen=True, eq=False, repr=False)
class _UnderWay:
    """PRIVATE. A request, where the cluster holds it, and how often it was lost."""

    number: int
    request: Parcel
    sent: Any
    losses: int


class DaskCrew:
    """The workers of a cluster, also those that come later.

    What is told arrives with the answer: on its way it would be kept by the scheduler. A worker that is lost
    takes requests with it that others were to answer; they are sent again, and are lost after `TRIES`.

    Parameters
    ----------
    client : a `distributed.Client`.
    wait_for_worker : returns when there is a worker, or raises a sentence.
    """

    def __init__(self, client: Any, on_told: OnTold, wait_for_worker: Callable[[Any], None]) -> None:
        self._client, self._on_told, self._wait_for_worker = client, on_told, wait_for_worker
        self._distributed = require("distributed", EXTRA)
        self._parcel: ParcelledJob | None = None
        self._job: Any = None
        self._under_way: dict[Any, _UnderWay] = {}  # by future
        self._completed: Any = None

    @property
    def at_once(self) -> int:
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(threads.values()))

    def give(self, job: CrewJob) -> None:
        if self._job is not None:
            self._job.release()
        self._parcel, self._job = ParcelledJob(pickle.dumps(job, pickle.HIGHEST_PROTOCOL)), None

    def submit(self, number: int, request: Any, *, near: str | None = None) -> None:
        self._ask(number, Parcel.of(request), near)

    def answers(self) -> Iterator[Answer]:
        completed = self._distributed.as_completed(list(self._under_way), loop=self._client.loop)
        self._completed = completed
        try:
            for future in completed:
                asked = self._under_way.pop(future)
                parcel = self._result(future)
                asked.sent.release()
                future.release()
                if parcel is not None:
                    yield self._answer(asked.number, parcel)
                elif asked.losses + 1 < TRIES:
                    self._ask(asked.number, asked.request, None, losses=asked.losses + 1)
                else:
                    yield Answer(asked.number, "", lost=True)
        finally:
            self._completed = None

    def _ask(self, number: int, request: Parcel, near: str | None, *, losses: int = 0) -> None:
        if self._job is None or self._job.status != "finished":
            assert self._parcel is not None, "a crew needs a job before its first request"
            self._job = self._send(self._parcel, broadcast=True)
        sent = self._send(request)
        preferred = {} if near is None else {"workers": [near], "allow_other_workers": True}
        future = self._client.submit(
            answer_on_worker,
            self._job,
            sent,
            key=f"feeder-step-{secrets.token_hex(8)}",
            pure=False,
            priority=0 if near is None else FIRST,
            **preferred,
        )
        self._under_way[future] = _UnderWay(number, request, sent, losses)
        if self._completed is not None:
            self._completed.add(future)

    def _answer(self, number: int, parcel: Parcel) -> Answer:
        where, told, (value, problem, defect) = parcel.opened()
        for thing in told:
            self._on_told(number, thing)
        return Answer(number, where, value, problem, defect)

    def close(self) -> None:
        """Make the cluster forget everything, also what is being done."""
        futures = [*self._under_way, *(asked.sent for asked in self._under_way.values())]
        self._under_way.clear()
        self._client.cancel(futures + ([] if self._job is None else [self._job]), force=True)

    def _result(self, future: Any) -> Parcel | None:
        """What a worker answered; None if it was lost."""
        if future.cancelled():
            return None
        try:
            result: Parcel = future.result()
        except (self._distributed.KilledWorker, self._distributed.CancelledError, OSError):
            return None
        return result

    def _send(self, parcel: Parcel, *, broadcast: bool = False) -> Any:
        for _ in range(TRIES):
            self._wait_for_worker(self._client)
            try:
                # Not hashed: a key made from the content would be a function of the secret.
                return self._client.scatter(parcel, broadcast=broadcast, hash=False)
            except (OSError, self._distributed.CancelledError):
                continue  # a worker was lost while it was sent
        raise DpPowerflowError(
            "the workers of the cluster were lost again and again; see to the cluster, then run the same "
            "command again to resume"
        )


def answer_on_worker(job: ParcelledJob, request: Parcel) -> Parcel:
    """Answer one request on a worker. Dask shows and logs what a task raises: so nothing is raised."""
    distributed = require("distributed", EXTRA)
    told: list[object] = []
    answer = attempted(0, "", lambda: job.work()(request.opened(), told.append), described)
    where = distributed.get_worker().address
    try:
        return Parcel.of((where, told, (answer.value, answer.problem, answer.defect)))
    except Exception as error:  # it cannot be pickled
        return Parcel.of((where, [], (None, None, described(error))))


def described(error: Exception) -> str:
    """Kind and line of a defect; its text may quote private data."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"
