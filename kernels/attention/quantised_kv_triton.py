"""Products with quantised K and V in the Triton decode kernels; ``kv`` has the layout.

K is multiplied as it is, by queries in two parts of its own dtype. V, whose bytes no matrix unit
transposes, is widened to float16, four values at a time: Triton's own conversions go byte by byte,
in twice the instructions.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl

_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def split_queries(q, dtype: tl.constexpr):
    """q: [dims, groups]. Returns two parts of ``dtype``, and a scale for each group.

    The first part is q rounded, the second what that left; int8's second is 254 times as large as
    what it stands for. Together they are as exact as bfloat16, int8's more.
    """
    LARGEST: tl.constexpr = 127.0 if dtype == tl.int8 else 448.0
    q = q.to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(q), axis=0), 1e-30)
    q = q * (LARGEST / largest)[None, :]
    if dtype == tl.int8:
        first = tl.floor(q + 0.5)
        second = tl.floor((q - first) * 254.0 + 0.5)
        scale = largest / (LARGEST * 254.0)
    else:
        first = round_to_float8(q)
        second = round_to_float8(q - first)
        scale = largest / LARGEST
    return first.to(dtype), second.to(dtype), scale


@triton.jit
def round_to_float8(x):
    """x: float32. Triton's interpreter loses the carry where its own rounding needs one."""
    bits = x.to(tl.int32, bitcast=True) + (1 << 19)
    return (bits & -(1 << 20)).to(tl.float32, bitcast=True)


@triton.jit
def multiply(k, first, second):
    """k @ q in float32, less the scale of q, for its parts from split_queries."""
    if k.dtype == tl.int8:
        high = tl.dot(k, first, out_dtype=tl.int32).to(tl.float32)
        low = tl.dot(k, second, out_dtype=tl.int32).to(tl.float32)
        product = high * 254.0 + low
    else:
        product = tl.dot(k, first, tl.dot(k, second))
    return product


@triton.jit
def widen(words, dtype: tl.constexpr):
    """words: [R, W] int32, each of four values of dtype; returns [R, 4 W] float16, exact.

    A thread's sixteen values go to two columns of eight, half a row apart, so that threads side by
    side store side by side in shared memory: see widened_dims.
    """
    if not _COMPILED:
        a, b, c, d = (
            words.to(tl.int8).to(dtype, bitcast=True).to(tl.float16),
            (words >> 8).to(tl.int8).to(dtype, bitcast=True).to(tl.float16),
            (words >> 16).to(tl.int8).to(dtype, bitcast=True).to(tl.float16),
            (words >> 24).to(tl.int8).to(dtype, bitcast=True).to(tl.float16),
        )
    elif dtype == tl.int8:
        # The byte 0x64 above a byte makes the float16 of 1024 and that byte.
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b32 bytes, low, high, bias;
            xor.b32 bytes, $4, 0x80808080;
            prmt.b32 low, bytes, 0x64646464, 0x5150;
            prmt.b32 high, bytes, 0x64646464, 0x5352;
            mov.b32 bias, 0x64806480;
            sub.f16x2 low, low, bias;
            sub.f16x2 high, high, bias;
            mov.b32 {$0, $1}, low;
            mov.b32 {$2, $3}, high;
            }""",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    else:
        a, b, c, d = tl.inline_asm_elementwise(
            """{
            .reg .b16 first, second;
            .reg .b32 low, high;
            mov.b32 {first, second}, $4;
            cvt.rn.f16x2.e4m3x2 low, first;
            cvt.rn.f16x2.e4m3x2 high, second;
            mov.b32 {$0, $1}, low;
            mov.b32 {$2, $3}, high;
            }""",
            "=h,=h,=h,=h,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    values = tl.join(tl.join(a, c), tl.join(b, d))
    values = tl.reshape(values, (words.shape[0], words.shape[1] // 4, 2, 8))
    return tl.reshape(tl.permute(values, (0, 2, 1, 3)), (words.shape[0], 4 * words.shape[1]))


# Of two pairs $2, the lower values $0 and the higher ones $1; see widen.
_WIDEN_INT8 = tl.constexpr(
    """{
            .reg .b32 bytes, bias;
            xor.b32 bytes, $2, 0x80808080;
            mov.b32 bias, 0x64806480;
            prmt.b32 $0, bytes, 0x64646464, 0x5250;
            prmt.b32 $1, bytes, 0x64646464, 0x5351;
            sub.f16x2 $0, $0, bias;
            sub.f16x2 $1, $1, bias;
            }"""
)
_WIDEN_FP8 = tl.constexpr(
    """{
            .reg .b16 first, second;
            .reg .b32 sorted;
            prmt.b32 sorted, $2, 0, 0x3120;
            mov.b32 {first, second}, sorted;
            cvt.rn.f16x2.e4m3x2 $0, first;
            cvt.rn.f16x2.e4m3x2 $1, second;
            }"""
)


@triton.jit
def widen_pairs(pairs, dtype: tl.constexpr):
    """pairs: int16, each of two values of dtype. Returns the lower and the higher ones in float16.

    Two pairs side by side in a register, as the matrix units take them, make two of each.
    """
    lower, higher = tl.inline_asm_elementwise(
        _WIDEN_INT8 if dtype == tl.int8 else _WIDEN_FP8,
        "=&r,=&r,r",
        [pairs],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )
    return lower, higher


@triton.jit
def widened_dims(DIM_PAD: tl.constexpr):
    """The dimension of V that is in each column of what ``widen`` returns."""
    HALF: tl.constexpr = DIM_PAD // 2
    column = tl.arange(0, DIM_PAD)
    return column % HALF // 8 * 16 + column // HALF * 8 + column % 8
