"""The cryptographic generator, and exact noise from it."""

from __future__ import annotations

import numpy as np
import pytest
from randomgen import AESCounter
from scipy import stats

from dp_powerflow import StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.lowlevel import discrete_gaussian
from dp_powerflow.privacy.random import MAX_SIGMA, Stream, uniform_below

KEY = StreamKey.from_insecure_seed(2024)
DRAWS = 200_000


def exact_pmf(sigma: int, reach: int) -> np.ndarray:
    x = np.arange(-reach, reach + 1)
    weight = np.exp(-(x**2) / (2 * sigma**2))
    return np.asarray(weight / weight.sum())


@pytest.mark.parametrize("sigma", [1, 2, 3, 7])
def test_small_scales_follow_the_exact_distribution(sigma: int) -> None:
    draws = discrete_gaussian(KEY.stream("pmf", sigma), sigma, DRAWS)
    reach = 4 * sigma
    inside = draws[np.abs(draws) <= reach]
    observed = np.bincount(inside + reach, minlength=2 * reach + 1)
    tail = np.array([DRAWS - inside.size])
    pmf = exact_pmf(sigma, 40 * sigma)[36 * sigma : 44 * sigma + 1]
    expected = np.concatenate([pmf, [1 - pmf.sum()]]) * DRAWS
    assert stats.chisquare(np.concatenate([observed, tail]), expected).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [1000, 2**25 + 1, 2**40 + 12345, MAX_SIGMA])
def test_large_scales_match_the_normal_in_bulk_and_tail(sigma: int) -> None:
    draws = discrete_gaussian(KEY.stream("large", sigma), sigma, DRAWS) / sigma
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    assert abs(draws.var() - 1) < 5 * np.sqrt(2 / DRAWS)
    beyond = int((np.abs(draws) > 3).sum())
    assert stats.binomtest(beyond, DRAWS, 2 * stats.norm.sf(3)).pvalue > 1e-4


def test_variance_is_below_sigma_squared_at_sigma_one() -> None:
    """CKS, Corollary 9: the discrete Gaussian never has more variance than the continuous one."""
    pmf = exact_pmf(1, 40)
    variance = float(pmf @ np.arange(-40, 41) ** 2)
    draws = discrete_gaussian(KEY.stream("variance"), 1, DRAWS)
    assert abs(draws.var() - variance) < 6 * np.sqrt(2 / DRAWS)


def test_odd_and_even_values_are_equally_frequent() -> None:
    draws = discrete_gaussian(KEY.stream("parity"), 2**20, DRAWS)
    assert stats.binomtest(int((draws % 2).sum()), DRAWS, 0.5).pvalue > 1e-4


def test_same_stream_same_noise_and_other_stream_other_noise() -> None:
    first = discrete_gaussian(KEY.stream("a"), 1000, 500)
    assert np.array_equal(first, discrete_gaussian(KEY.stream("a"), 1000, 500))
    assert not np.array_equal(first, discrete_gaussian(KEY.stream("b"), 1000, 500))
    for size in (0, 70_000):
        assert discrete_gaussian(KEY.stream("any size"), 5, size).shape == (size,)


@pytest.mark.parametrize("sigma", [0, -1, MAX_SIGMA + 1])
def test_scales_out_of_range_are_refused(sigma: int) -> None:
    with pytest.raises(PrivacyError, match="noise scale"):
        discrete_gaussian(KEY.stream("bad"), sigma, 1)


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 96])
def test_uniform_integers_are_uniform(bound: int) -> None:
    draws = uniform_below(KEY.stream("uniform", bound), bound, 50_000)
    assert draws.min() >= 0
    assert draws.max() < bound
    assert stats.chisquare(np.bincount(draws, minlength=bound)).pvalue > 1e-4 or bound == 1


# ------------------------------------------------------------------------------------------- streams


def test_generator_is_aes_128_as_published() -> None:
    """FIPS 197, appendix C.1: the vendor's block cipher is the standard one, not a reduced version."""
    key = int.from_bytes(bytes(range(16)), "little")
    plain = int.from_bytes(bytes.fromhex("00112233445566778899aabbccddeeff"), "little")
    cipher = AESCounter(key=key, counter=plain).random_raw(2).tobytes()
    assert cipher.hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


@pytest.mark.parametrize(
    "other",
    [
        StreamKey.from_insecure_seed(1).stream("noise", 0),
        StreamKey.from_insecure_seed(0).stream("noise", 1),
        StreamKey.from_insecure_seed(0).stream("sample", 0),
        StreamKey.from_insecure_seed(0).bind("release", "b").stream("noise", 0),
    ],
)
def test_streams_of_different_keys_share_nothing(other: Stream) -> None:
    words = StreamKey.from_insecure_seed(0).stream("noise", 0).words(1000)
    assert not np.intersect1d(words, other.words(1000)).size


def test_contexts_are_injective_and_cannot_imitate_a_purpose() -> None:
    key = StreamKey.from_insecure_seed(0)
    streams = [key.bind("ab", "c").stream("x"), key.bind("a", "bc").stream("x"), key.stream("x")]
    streams += [key.bind("|", "stream").stream("x"), key.stream("|")]
    assert len({stream.words(4).tobytes() for stream in streams}) == len(streams)


def test_system_keys_differ_and_are_not_marked_insecure() -> None:
    first, second = StreamKey.from_system(), StreamKey.from_system()
    assert first.secret != second.secret
    assert not first.insecure_seed
    assert StreamKey.from_insecure_seed(0).bind("a", "b").insecure_seed


def test_keyed_hash_needs_the_secret_and_sees_chunk_borders() -> None:
    key = StreamKey.from_insecure_seed(0)
    assert key.keyed_hash([b"ab", b"c"]) != key.keyed_hash([b"a", b"bc"])
    assert key.keyed_hash([b"ab"]) != StreamKey.from_insecure_seed(1).keyed_hash([b"ab"])


def test_a_short_secret_and_a_negative_block_are_refused() -> None:
    with pytest.raises(PrivacyError, match="from_system"):
        StreamKey(b"short")
    with pytest.raises(PrivacyError, match="number blocks from 0"):
        StreamKey.from_insecure_seed(0).stream("x", -1)
