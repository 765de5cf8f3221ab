"""AES-128 of counters inside kernels: the stream of `randomgen.AESCounter`, any part of it, in any order.

Block c of a stream is AES(key, c), c a number of 128 bits, low byte first: two words of 64 bits, the first
eight bytes first. `randomgen` gives blocks 0, 1, 2, …; a kernel asks for the blocks it needs. What comes out
is the same words, tested for many keys and counters, so there is one definition of a stream.

**Why this is safe.** Counter mode is a cryptographic generator as long as no counter of a key is used for two
purposes: blocks of different counters cannot be told from independent uniform words without the key, up to
an advantage of n²/2¹²⁹ for n blocks; a decade of 2,000 customers is 2²⁹ blocks. A caller of `round_keys`
with a stream's key lays out the counters by purpose, and takes nothing else from that stream.

The instructions of the processor are used where numba's target has them (every x86-64 with AVX2 has);
elsewhere the same words come from tables.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba import config
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dp_powerflow._bits.elementary import kernel

WordArray = NDArray[np.uint64]
_ROUNDS = 10
_AT_ONCE = 8  # blocks: an instruction takes four cycles, and two begin in each
_INDEX = ir.IntType(64)
_BLOCK = ir.VectorType(ir.IntType(64), 2)


def _target_has_aes() -> bool:
    """Whether numba compiles for a processor with AES instructions."""
    if config.CPU_FEATURES is not None:
        return "+aes" in str(config.CPU_FEATURES).split(",")
    return bool(llvm.get_host_cpu_features().get("aes", False))


HARDWARE = _target_has_aes()
"""Whether `counter_words` uses the instructions of the processor."""


def _times_two(byte: int) -> int:
    return (byte << 1) ^ (0x11B if byte & 0x80 else 0)


_BOX = bytes.fromhex(
    "637c777bf26b6fc53001672bfed7ab76ca82c97dfa5947f0add4a2af9ca472c0b7fd9326363ff7cc34a5e5f171d83115"
    "04c723c31896059a071280e2eb27b27509832c1a1b6e5aa0523bd6b329e32f8453d100ed20fcb15b6acbbe394a4c58cf"
    "d0efaafb434d338545f9027f503c9fa851a3408f929d38f5bcb6da2110fff3d2cd0c13ec5f974417c4a77e3d645d1973"
    "60814fdc222a908846eeb814de5e0bdbe0323a0a4906245cc2d3ac629195e479e7c8376d8dd54ea96c56f4ea657aae08"
    "ba78252e1ca6b4c6e8dd741f4bbd8b8a703eb5664803f60e613557b986c11d9ee1f8981169d98e949b1e87e9ce5528df"
    "8ca1890dbfe6426841992d0fb054bb16"
)
"""The S-box of FIPS 197."""
_SUBSTITUTED = np.frombuffer(_BOX, dtype=np.uint8).astype(np.uint32)
_MIXED = np.array(
    [_times_two(s) | s << 8 | s << 16 | (_times_two(s) ^ s) << 24 for s in _BOX], dtype=np.uint32
)
"""(byte,) column that a byte in the first row adds to after substitution and mixing."""


def round_keys(key: bytes) -> WordArray:
    """(22,) the eleven round keys of an AES-128 key of 16 bytes."""
    columns = [list(key[4 * k : 4 * k + 4]) for k in range(4)]
    constant = 1
    for k in range(4, 4 * (_ROUNDS + 1)):
        last = columns[-1]
        if k % 4 == 0:
            last = [_BOX[last[1]] ^ constant, _BOX[last[2]], _BOX[last[3]], _BOX[last[0]]]
            constant = _times_two(constant)
        columns.append([a ^ b for a, b in zip(columns[k - 4], last, strict=True)])
    return np.frombuffer(bytes(byte for column in columns for byte in column), dtype=np.uint64)


@intrinsic  # type: ignore[untyped-decorator]
def _encrypt(typing: Any, keys: Any, low: Any, high: Any, blocks: Any, out: Any, at: Any) -> Any:
    """AES of counters (low, high), (low + 1, high), … into words `at` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        data = [context.make_array(signature.args[k])(context, b, arguments[k]).data for k in (0, 4)]
        low, high, blocks = arguments[1], arguments[2], arguments[3]
        key_at = b.bitcast(data[0], _BLOCK.as_pointer())
        out_at = b.bitcast(b.gep(data[1], [arguments[5]]), _BLOCK.as_pointer())
        keys = [b.load(b.gep(key_at, [ir.Constant(_INDEX, k)]), align=8) for k in range(_ROUNDS + 1)]
        kind = ir.FunctionType(_BLOCK, [_BLOCK, _BLOCK])
        middle, last = (
            cgutils.get_or_insert_function(b.module, kind, f"llvm.x86.aesni.{name}")
            for name in ("aesenc", "aesenclast")
        )

        def some(first: Any, count: int) -> None:
            states = []
            for j in range(count):
                counter = b.add(low, b.add(first, ir.Constant(_INDEX, j)))
                state = b.insert_element(
                    ir.Constant(_BLOCK, ir.Undefined), counter, ir.Constant(ir.IntType(32), 0)
                )
                state = b.insert_element(state, high, ir.Constant(ir.IntType(32), 1))
                states.append(b.xor(state, keys[0]))
            for k in range(1, _ROUNDS + 1):
                states = [b.call(last if k == _ROUNDS else middle, [state, keys[k]]) for state in states]
            for j, state in enumerate(states):
                b.store(state, b.gep(out_at, [b.add(first, ir.Constant(_INDEX, j))]), align=8)

        zero, step = ir.Constant(_INDEX, 0), ir.Constant(_INDEX, _AT_ONCE)
        whole = b.and_(blocks, ir.Constant(_INDEX, -_AT_ONCE))
        with cgutils.for_range_slice(b, zero, whole, step, inc=True) as (k, _):
            some(k, _AT_ONCE)
        with cgutils.for_range_slice(b, whole, blocks, ir.Constant(_INDEX, 1), inc=True) as (k, _):
            some(k, 1)
        return context.get_dummy_value()

    return types.void(keys, low, high, blocks, out, at), generate


@kernel
def hardware_words(keys: WordArray, low: int, high: int, blocks: int, out: WordArray, at: int) -> None:
    """See `counter_words`."""
    _encrypt(keys, np.int64(low), np.int64(high), np.int64(blocks), out, np.int64(at))


@kernel
def _column(s: int, keys: WordArray, place: int) -> int:
    """One column of 32 bits of a round key, into a state."""
    return s ^ ((int(keys[place >> 1]) >> (32 * (place & 1))) & 0xFFFFFFFF)


@kernel
def _mixed(a: int, b: int, c: int, d: int) -> int:
    """A column after substitution, shift of rows and mixing, from the four columns that it takes bytes of."""
    first, second = int(_MIXED[a & 255]), int(_MIXED[(b >> 8) & 255])
    third, fourth = int(_MIXED[(c >> 16) & 255]), int(_MIXED[(d >> 24) & 255])
    turned = (second << 8 | second >> 24) ^ (third << 16 | third >> 16) ^ (fourth << 24 | fourth >> 8)
    return (first ^ turned) & 0xFFFFFFFF


@kernel
def _substituted(a: int, b: int, c: int, d: int) -> int:
    """The same without mixing."""
    low = int(_SUBSTITUTED[a & 255]) | int(_SUBSTITUTED[(b >> 8) & 255]) << 8
    high = int(_SUBSTITUTED[(c >> 16) & 255]) | int(_SUBSTITUTED[(d >> 24) & 255]) << 8
    return low | high << 16


@kernel
def table_words(keys: WordArray, low: int, high: int, blocks: int, out: WordArray, at: int) -> None:
    """See `counter_words`."""
    for k in range(blocks):
        first, second = low + k, high
        a, b = _column(first & 0xFFFFFFFF, keys, 0), _column((first >> 32) & 0xFFFFFFFF, keys, 1)
        c, d = _column(second & 0xFFFFFFFF, keys, 2), _column((second >> 32) & 0xFFFFFFFF, keys, 3)
        for place in range(4, 4 * _ROUNDS, 4):
            e, f = _mixed(a, b, c, d), _mixed(b, c, d, a)
            g, h = _mixed(c, d, a, b), _mixed(d, a, b, c)
            a, b = _column(e, keys, place), _column(f, keys, place + 1)
            c, d = _column(g, keys, place + 2), _column(h, keys, place + 3)
        e, f = _substituted(a, b, c, d), _substituted(b, c, d, a)
        g, h = _substituted(c, d, a, b), _substituted(d, a, b, c)
        place = 4 * _ROUNDS
        a, b = _column(e, keys, place), _column(f, keys, place + 1)
        c, d = _column(g, keys, place + 2), _column(h, keys, place + 3)
        out[at + 2 * k] = np.uint64(a | b << 32)
        out[at + 2 * k + 1] = np.uint64(c | d << 32)


counter_words = hardware_words if HARDWARE else table_words
"""counter_words(keys, low, high, blocks, out, at): AES of the counters high·2⁶⁴ + low, + low + 1, … of
`blocks` blocks, two words each, into `out` from word `at` on. The low word must not pass 2⁶⁴."""
