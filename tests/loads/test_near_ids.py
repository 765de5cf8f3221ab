"""Ids that nearly match: the kind of difference and how many, never an id."""

from __future__ import annotations

import pytest

from dp_powerflow.errors import LoadDataError
from dp_powerflow.loads.report import IdFindings, NearMatches, compare_ids

SAME_NUMBER = "what stands around the same number"
AFFIX = "a prefix or suffix that they share"
DECIMALS = "decimals of a number (12 and 12.0)"


@pytest.mark.parametrize(
    ("in_file", "listed", "difference", "count"),
    [
        (["0071", "0072", "a"], ["71", "72"], "leading zeros", 2),
        (["M007", "M008"], ["M7", "M8"], "leading zeros", 2),
        (["12.0", "13.0"], ["12", "13"], DECIMALS, 2),
        (["12", "13"], ["12,00", "13,00"], DECIMALS, 2),
        (["CH-aa", "CH-bb", "CH-cc", "other"], ["aa", "bb", "cc"], AFFIX, 3),
        (["aa", "bb"], ["aa/1", "bb/1"], AFFIX, 2),
        (["meter 71", "meter 72"], ["house-71", "house-72"], SAME_NUMBER, 2),
        (["12-34", "56-78"], ["1234", "5678"], SAME_NUMBER, 2),
        (["alder", "birch"], ["adler", "birch"], None, 0),  # two signs swapped are two changes
        (["alder", "birch"], ["elder", "birhc"], "one character", 1),
        (["alder", "birch"], ["alderx", "brch"], "one character", 2),
        (["aa"], ["bb"], None, 0),
        (["aa", "bb"], ["aa", "bb"], None, 0),
    ],
)
def test_near_matches_are_counted_by_kind(
    in_file: list[str], listed: list[str], difference: str | None, count: int
) -> None:
    found = compare_ids(in_file, listed)
    assert found.near == (() if difference is None else (NearMatches(difference, count),))
    for text in (found.hint, repr(found)):
        assert not any(name in text for name in {*in_file, *listed} if len(name) > len("12.0"))


def test_an_id_is_paired_once() -> None:
    found = compare_ids(["aab", "aac", "aad"], ["aaa"])
    assert found.near == (NearMatches("one character", 1),)
    assert (found.unlisted, found.absent) == (3, 1)


@pytest.mark.parametrize(
    ("other", "kind"), [("AA1", "upper or lower case"), ("aa\u00ad1", "blanks or invisible characters")]
)
def test_ids_that_look_alike_are_refused_with_their_count_and_what_to_do(other: str, kind: str) -> None:
    with pytest.raises(LoadDataError, match=f"1 ids by {kind}: write each id alike in both") as caught:
        compare_ids(["aa1", "b"], [other, "b"])
    assert "differ only" in str(caught.value)


def test_counts_of_both_sides_are_found() -> None:
    found = compare_ids(["a1", "b1", "x"], ["a1", "b1", "y1", "y2"], with_blanks=2)
    assert found == IdFindings(3, 4, 1, 2, 2)


def test_many_ids_take_no_time_to_speak_of() -> None:
    """Words are compared by their pieces: no id is compared with every other."""
    found = compare_ids([f"m{i}" for i in range(5_000)], [f"w{3 * i}x" for i in range(5_000)])
    assert found.near
    assert found.near[0].difference == SAME_NUMBER
