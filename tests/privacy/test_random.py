from __future__ import annotations

import numpy as np
import pytest
from randomgen import AESCounter

from dp_powerflow import StreamKey
from dp_powerflow.errors import PrivacyError
from dp_powerflow.privacy.random import Stream


def test_generator_is_aes_128_as_published() -> None:
    """FIPS 197, appendix C.1: the vendor's block cipher is the standard one, not a reduced version."""
    key = int.from_bytes(bytes(range(16)), "little")
    plain = int.from_bytes(bytes.fromhex("00112233445566778899aabbccddeeff"), "little")
    cipher = AESCounter(key=key, counter=plain).random_raw(2).tobytes()
    assert cipher.hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


def test_same_purpose_and_block_give_the_same_bits() -> None:
    key = StreamKey.from_insecure_seed(7).bind("release", "a")
    assert np.array_equal(key.stream("noise", 3).words(50), key.stream("noise", 3).words(50))


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


def test_context_encoding_is_injective() -> None:
    key = StreamKey.from_insecure_seed(0)
    first = key.bind("ab", "c").stream("x").words(4)
    second = key.bind("a", "bc").stream("x").words(4)
    assert not np.array_equal(first, second)


def test_context_cannot_imitate_a_purpose() -> None:
    key = StreamKey.from_insecure_seed(0)
    bound = key.bind("|", "stream").stream("x").words(4)
    assert not np.array_equal(bound, key.stream("|").words(4))
    assert not np.array_equal(bound, key.stream("x").words(4))


def test_system_keys_differ_and_are_not_marked_insecure() -> None:
    first, second = StreamKey.from_system(), StreamKey.from_system()
    assert first.secret != second.secret
    assert not first.insecure_seed
    assert StreamKey.from_insecure_seed(0).bind("a", "b").insecure_seed


def test_short_secret_is_refused() -> None:
    with pytest.raises(PrivacyError, match="from_system"):
        StreamKey(b"short")


def test_keyed_hash_needs_the_secret_and_sees_chunk_borders() -> None:
    key = StreamKey.from_insecure_seed(0)
    assert key.keyed_hash([b"ab", b"c"]) != key.keyed_hash([b"a", b"bc"])
    assert key.keyed_hash([b"ab"]) != StreamKey.from_insecure_seed(1).keyed_hash([b"ab"])


def test_negative_block_is_refused() -> None:
    with pytest.raises(PrivacyError, match="number blocks from 0"):
        StreamKey.from_insecure_seed(0).stream("x", -1)
