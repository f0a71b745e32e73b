"""What the quantised kernels share: fields and scales of a tile of planes, without conversions.

Integer-to-float conversions would bound these kernels, so a field is masked out where it stands in
the low 23 bits of a word, and those bits are read as a float: a subnormal one, q * 2**(at - 149),
exact. What it is multiplied by carries the missing power of two.
The same source runs compiled on CUDA and under ``TRITON_INTERPRET=1`` on CPU tensors.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def field(low, high, SLOT: tl.constexpr, FIELD: tl.constexpr, HIGH: tl.constexpr):
    """Field SLOT of each word as q * 2**(at - 149), subnormal in float32; at: ``field_at``.

    low: int32 words. high: int32, the word's high bits, HIGH per field (0: none, ignored).
    """
    AT: tl.constexpr = FIELD * (SLOT % (16 // FIELD))
    word = low if SLOT < 16 // FIELD else low >> 16
    q = word & (((1 << FIELD) - 1) << AT)
    if HIGH > 0:
        FROM: tl.constexpr = SLOT % 2 * 4 + SLOT // 2 if HIGH == 1 else SLOT % 4 * 4 + SLOT // 4 * 2
        q |= (high << (AT + FIELD - FROM)) & (((1 << HIGH) - 1) << (AT + FIELD))
    return q.to(tl.float32, bitcast=True)


@triton.jit
def _low_half(pair):
    """The fp16 in the low 16 bits of an int32, as float32."""
    return (pair & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _high_half(pair):
    return (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def group_scales(
    scales_ptr,
    minima_ptr,
    supers_ptr,
    row,
    unit,
    mask,
    HALF: tl.constexpr,
    TYPE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """(scale, bias) float32 of units of rows, so that a weight is scale * q + bias.

    row, unit: integers that broadcast together. WIDTH: in_features. HALF: which half of a unit,
    where the halves differ (Q6_K).
    """
    if TYPE == "Q4_0":
        scale = tl.load(scales_ptr + row * (WIDTH // 32) + unit, mask=mask, other=0.0)
        scale = scale.to(tl.float32)
        bias = scale * -8.0
    elif TYPE == "Q4_1":
        pair = tl.load(scales_ptr + row * (WIDTH // 32) + unit, mask=mask, other=0)
        scale = _low_half(pair)
        bias = _high_half(pair)
    elif TYPE == "Q8_0":
        scale = tl.load(scales_ptr + row * (WIDTH // 32) + unit // 2, mask=mask, other=0.0)
        scale = scale.to(tl.float32)
        bias = scale * -128.0
    elif TYPE == "Q6_K":
        scale = tl.load(scales_ptr + row * (WIDTH // 16) + unit * 2 + HALF, mask=mask, other=0)
        d = tl.load(supers_ptr + row * (WIDTH // 256) + unit // 8, mask=mask, other=0.0)
        scale = scale.to(tl.float32) * d.to(tl.float32)
        bias = scale * -32.0
    else:
        pair = tl.load(supers_ptr + row * (WIDTH // 256) + unit // 8, mask=mask, other=0)
        field = tl.load(scales_ptr + row * (WIDTH // 32) + unit, mask=mask, other=0).to(tl.int32)
        top = tl.load(minima_ptr + row * (WIDTH // 64) + unit // 2, mask=mask, other=0)
        least = (field >> 6) | (((top.to(tl.int32) >> (unit % 2 * 4)) & 15) << 2)
        scale = _low_half(pair) * (field & 63).to(tl.float32)
        bias = -(_high_half(pair) * least.to(tl.float32))
    return scale, bias


@triton.jit
def weight_slots(
    low_ptr,
    high_ptr,
    scales_ptr,
    minima_ptr,
    supers_ptr,
    row,
    first_unit,
    TYPE: tl.constexpr,
    FIELD: tl.constexpr,
    HIGH: tl.constexpr,
    WIDTH: tl.constexpr,
    UNITS: tl.constexpr,
    DTYPE: tl.constexpr,
    LOWER: tl.constexpr,
):
    """Weights of UNITS units of rows, times 2**-LOWER: [4 * UNITS, ROWS, slots] in DTYPE.

    row: [1, ROWS] int64. LOWER: 0 or 64; 64 saves a multiplication per weight and needs the
    exponent range of bfloat16 or float32. Units past the end of a row are zero.
    """
    ROW_UNITS: tl.constexpr = WIDTH * FIELD // 128
    WHOLE: tl.constexpr = ROW_UNITS % UNITS == 0
    unit = first_unit + tl.arange(0, UNITS)[:, None]
    word = first_unit * 4 + tl.arange(0, 4 * UNITS)[:, None]
    unit_ok = (unit < ROW_UNITS) | WHOLE  # folds to no mask
    word_ok = (word < 4 * ROW_UNITS) | WHOLE
    at = row * (4 * ROW_UNITS)
    low = tl.load(low_ptr + at + word, mask=word_ok, other=0)
    high = low
    if HIGH > 0:
        high_at = tl.multiple_of(high_ptr + at + word, (4 * HIGH, 1))
        high = tl.load(high_at, mask=word_ok, other=0).to(tl.int32)
    scale, bias = group_scales(
        scales_ptr, minima_ptr, supers_ptr, row, unit, unit_ok, 0, TYPE, WIDTH
    )
    scale = _to_words(scale)
    bias = _to_words(bias * 2.0**-LOWER)
    w0 = _weight(low, high, scale, bias, 0, FIELD, HIGH, LOWER).to(DTYPE)
    w1 = _weight(low, high, scale, bias, 1, FIELD, HIGH, LOWER).to(DTYPE)
    w2 = _weight(low, high, scale, bias, 2, FIELD, HIGH, LOWER).to(DTYPE)
    w3 = _weight(low, high, scale, bias, 3, FIELD, HIGH, LOWER).to(DTYPE)
    # A join adds a last dimension: here the slot's bits, the highest outermost.
    if FIELD == 8:
        slots = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    else:
        if TYPE == "Q6_K":
            scale, bias = group_scales(
                scales_ptr, minima_ptr, supers_ptr, row, unit, unit_ok, 1, TYPE, WIDTH
            )
            scale = _to_words(scale)
            bias = _to_words(bias * 2.0**-LOWER)
        w4 = _weight(low, high, scale, bias, 4, FIELD, HIGH, LOWER).to(DTYPE)
        w5 = _weight(low, high, scale, bias, 5, FIELD, HIGH, LOWER).to(DTYPE)
        w6 = _weight(low, high, scale, bias, 6, FIELD, HIGH, LOWER).to(DTYPE)
        w7 = _weight(low, high, scale, bias, 7, FIELD, HIGH, LOWER).to(DTYPE)
        even = tl.join(tl.join(w0, w4), tl.join(w2, w6))
        odd = tl.join(tl.join(w1, w5), tl.join(w3, w7))
        slots = tl.join(even, odd)
    return tl.reshape(slots, [4 * UNITS, row.shape[1], 32 // FIELD])


@triton.jit
def _weight(
    low,
    high,
    scale,
    bias,
    SLOT: tl.constexpr,
    FIELD: tl.constexpr,
    HIGH: tl.constexpr,
    LOWER: tl.constexpr,
):
    AT: tl.constexpr = FIELD * (SLOT % (16 // FIELD))
    q = field(low, high, SLOT, FIELD, HIGH)
    if LOWER == 0:
        # 2**(149 - AT) is beyond float32: raised in two steps.
        return (q * 2.0 ** (126 - AT)) * (scale * 2.0**23) + bias
    return q * (scale * 2.0 ** (149 - LOWER - AT)) + bias


@triton.jit
def _to_words(x):
    """[UNITS, ROWS] to [4 * UNITS, ROWS], each unit's value for its four words."""
    wide = tl.broadcast_to(x[:, None, :], [x.shape[0], 4, x.shape[1]])
    return tl.reshape(wide, [x.shape[0] * 4, x.shape[1]])
