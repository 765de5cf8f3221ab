"""What one core of this machine can do at most, measured: memory, multiply-adds, AES, zstd, SHA-256, disk.

Processor time of one thread, best of several, except for the disk, which is timed by the clock. Other work on
the machine therefore hardly counts, but it takes part of the shared memory bandwidth and of the disk.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from dp_powerflow import StreamKey
from dp_powerflow._bits.aes import hardware_words

LANES = 8
"""Doubles of one vector of the multiply-add loop: 512 bits, which narrower processors do in two steps. The
solver states vectors of 16 and leaves their division to the compiler, as this loop does."""
CHAINS = 8
"""Independent vectors: enough to hide the latency of a multiply-add."""
TRIES = 5
PIECE = 1 << 16
"""Bytes that AES turns at a time: they stay in the caches."""


@dataclass(frozen=True)
class Machine:
    """Peaks of one core.

    Attributes
    ----------
    copy, triad : memory traffic, both ways counted [B/s].
    flops : floating-point operations, a multiply-add counts two [1/s].
    aes_stream : random bytes of the kernel that draws use [B/s].
    aes : bytes of AES-128 in counter mode by OpenSSL; 0 where there is none [B/s].
    sha256 : bytes hashed [B/s].
    disk : bytes written and synced, by the clock [B/s].
    """

    copy: float
    triad: float
    flops: float
    aes_stream: float
    aes: float
    sha256: float
    disk: float

    @property
    def random_bytes(self) -> float:
        """The faster way to random bytes [B/s]."""
        return max(self.aes, self.aes_stream)

    @property
    def memory(self) -> float:
        """The faster of copy and triad [B/s]."""
        return max(self.copy, self.triad)

    def lines(self) -> list[str]:
        return [
            f"memory: copy {self.copy / 1e9:.1f} GB/s, triad {self.triad / 1e9:.1f} GB/s",
            f"multiply-adds: {self.flops / 1e9:.1f} Gflop/s (vectors of {LANES} doubles)",
            f"AES-128 in counter mode: the kernel of draws {self.aes_stream / 1e9:.2f} GB/s, OpenSSL "
            f"{self.aes / 1e9:.2f} GB/s",
            f"SHA-256 {self.sha256 / 1e9:.2f} GB/s, disk with fsync {self.disk / 1e6:,.0f} MB/s",
        ]


def measured(folder: Path, megabytes: int) -> Machine:
    """Peaks with arrays of so many megabytes, which must not fit into the caches."""
    count = megabytes * 10**6 // 8
    a, b, c = (np.full(count, value) for value in (0.0, 1.0, 2.0))
    content = os.urandom(megabytes * 10**6)
    rounds = max(1000, 10**7 * megabytes // 256)
    _multiply_adds(10)
    _triad(a[:8], b[:8], c[:8])
    return Machine(
        copy=16.0 * count / best(lambda: np.copyto(a, b)),
        triad=24.0 * count / best(lambda: _triad(a, b, c)),
        flops=2.0 * LANES * CHAINS * rounds / best(lambda: _multiply_adds(rounds)),
        aes_stream=max(_stream_speed(count // 2**k) for k in range(0, 12, 3)),
        aes=_openssl_speed(megabytes),
        sha256=len(content) / best(lambda: hashlib.sha256(content).digest()),
        disk=len(content) / best(lambda: write_and_sync(folder / "peak", content), time.perf_counter),
    )


def best(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Shortest time of several tries [s]."""
    times = []
    for _ in range(TRIES):
        began = clock()
        work()
        times.append(clock() - began)
    return max(min(times), 1e-9)


def _stream_speed(words: int) -> float:
    """Bytes per second of the generator that draws use, so many words at a time."""
    keys = StreamKey.from_insecure_seed(0).stream("peak").round_keys
    found = np.empty(words, dtype=np.uint64)
    hardware_words(keys, 0, 0, words // 2, found, 0)  # compiled
    return 8.0 * words / best(lambda: hardware_words(keys, 0, 0, words // 2, found, 0))


def _openssl_speed(megabytes: int) -> float:
    """Bytes per second of OpenSSL's AES-128 in counter mode; 0 where there is no such library."""
    name = ctypes.util.find_library("crypto")
    if name is None:
        return 0.0
    library = ctypes.CDLL(name)
    for function in ("EVP_CIPHER_CTX_new", "EVP_aes_128_ctr"):
        getattr(library, function).restype = ctypes.c_void_p
    cipher = ctypes.c_void_p(library.EVP_CIPHER_CTX_new())
    kind = ctypes.c_void_p(library.EVP_aes_128_ctr())
    library.EVP_EncryptInit_ex(cipher, kind, None, bytes(16), bytes(16))
    source, target, length = bytes(PIECE), ctypes.create_string_buffer(PIECE + 32), ctypes.c_int(0)
    pieces = max(1, megabytes * 10**6 // PIECE)

    def encrypt() -> None:
        for _ in range(pieces):
            library.EVP_EncryptUpdate(cipher, target, ctypes.byref(length), source, PIECE)

    seconds = best(encrypt)
    library.EVP_CIPHER_CTX_free(cipher)
    return pieces * PIECE / seconds


def write_and_sync(path: Path, content: bytes) -> None:
    """One file, on disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def zstd_speed(values: np.ndarray[Any, Any], level: int) -> tuple[float, float]:
    """Bytes in per second, and bytes out per byte in, of zstd on float32 values split by their bytes."""
    split = np.ascontiguousarray(values.astype(np.float32).reshape(-1).view(np.uint8).reshape(-1, 4).T)
    codec, content = pa.Codec("zstd", compression_level=level), split.tobytes()
    return len(content) / best(lambda: codec.compress(content)), len(codec.compress(content)) / len(content)


@njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _triad(a: Any, b: Any, c: Any) -> None:
    for i in range(a.size):
        a[i] = b[i] + 3.0 * c[i]


@intrinsic  # type: ignore[untyped-decorator]
def _chains(_: Any, count: Any) -> Any:
    """A loop of independent multiply-adds; one of their results."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.DoubleType(), LANES)
        kind = ir.FunctionType(vector, [vector] * 3)
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f64")
        slots = [
            cgutils.alloca_once_value(builder, ir.Constant(vector, [1.0 + k] * LANES)) for k in range(CHAINS)
        ]
        factor, term = (ir.Constant(vector, [value] * LANES) for value in (0.999, 0.5))
        with cgutils.for_range(builder, arguments[0]):
            for slot in slots:
                builder.store(builder.call(multiply_add, [builder.load(slot), factor, term]), slot)
        total = builder.load(slots[0])
        for slot in slots[1:]:
            total = builder.fadd(total, builder.load(slot))
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return types.float64(types.int64), code


@njit  # type: ignore[untyped-decorator]
def _multiply_adds(rounds: int) -> float:
    return _chains(rounds)  # type: ignore[no-any-return, call-arg]
