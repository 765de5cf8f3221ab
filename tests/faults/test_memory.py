"""Too little memory: one sentence, and exit code 2."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dp_powerflow import cli
from dp_powerflow._parallel.processes import Failure, Sealed


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_no_memory_in_the_middle_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: there is not enough memory; ")


def test_no_memory_in_a_worker_is_a_sentence() -> None:
    class Large:
        def start(self, threads: int | None) -> Callable[[int], int]:
            raise MemoryError

    found = Sealed(Large()).attempt(0)
    assert isinstance(found, Failure)
    assert str(found.error).startswith("there is not enough memory; ")
