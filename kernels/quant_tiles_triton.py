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


@triton.constexpr_function
def field_at(slot, field):
    """Bit at which ``field`` puts a field. The upper half of a word is shifted down to bit 4 or 7,
    not 0, where masking would compile to a slower bit-field extraction."""
    half = 16 // field
    return field * slot if slot < half else field * (slot - half) + (4 if field == 4 else 7)


@triton.constexpr_function
def high_from(slot, high):
    """Bit of its word's part of the high plane at which a field's HIGH bits are."""
    return slot % 2 * 4 + slot // 2 if high == 1 else slot % 4 * 4 + slot // 4 * 2


@triton.jit
def field(low, high, SLOT: tl.constexpr, FIELD: tl.constexpr, HIGH: tl.constexpr):
    """Field SLOT of each word as q * 2**(field_at - 149), subnormal in float32.

    low: int32 words. high: int32, the word's high bits, HIGH per field (0: none, ignored).
    """
    AT: tl.constexpr = field_at(SLOT, FIELD)
    word = low >> (FIELD * SLOT - AT)
    q = word & (((1 << FIELD) - 1) << AT)
    if HIGH > 0:
        FROM: tl.constexpr = high_from(SLOT, HIGH)
        q |= (high << (AT + FIELD - FROM)) & (((1 << HIGH) - 1) << (AT + FIELD))
    return q.to(tl.float32, bitcast=True)


@triton.jit
def _low_half(pair):
    """The fp16 in the low 16 bits of an int32, as float32."""
    return pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _high_half(pair):
    return (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def split_words(x):
    """The four words of each unit: [4 * U, R] as four [U, R]."""
    x = tl.permute(tl.reshape(x, [x.shape[0] // 4, 2, 2, x.shape[1]]), [0, 3, 1, 2])
    even, odd = tl.split(x)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def split_pairs(x):
    """Of each word's two neighbouring activations, the first and the second.

    [8 * U, R] as two tuples of four [U, R].
    """
    x = tl.permute(tl.reshape(x, [x.shape[0] // 2, 2, x.shape[1]]), [0, 2, 1])
    first, second = tl.split(x)
    return split_words(first), split_words(second)


@triton.jit
def group_scales(
    scales_ptr,
    supers_ptr,
    row,
    first_unit,
    UNITS: tl.constexpr,
    HALF: tl.constexpr,
    TYPE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """(scale, bias) [UNITS, ROWS] float32 of units of rows: a weight is scale * q + bias.

    row: [1, ROWS]. WIDTH: in_features. HALF: of a unit, where the halves differ (Q6_K). Zero past
    the end of a row.
    """
    UNIT: tl.constexpr = 16 if TYPE == "Q8_0" else 32
    unit = first_unit + tl.arange(0, UNITS)[:, None]
    mask = (unit < WIDTH // UNIT) | (WIDTH // UNIT % UNITS == 0)  # folds to no mask
    if TYPE == "Q4_K" or TYPE == "Q5_K":
        word = first_unit * 4 + tl.arange(0, 4 * UNITS)[:, None]
        mask = (word < WIDTH // 8) | (WIDTH // 32 % UNITS == 0)
        at = scales_ptr + row * (WIDTH // 64) + (word // 32 * 4 + word % 4)
        words = tl.load(tl.multiple_of(at, (16, 1)), mask=mask, other=0)
        supers, scale, least, top = split_words(words)
        shift = unit % 8 * 4
        top = top >> shift
        scale = ((scale >> shift) & 15) | ((top << 4) & 48)
        least = ((least >> shift) & 15) | ((top << 2) & 48)
        scale = _low_half(supers) * scale.to(tl.float32)
        bias = -(_high_half(supers) * least.to(tl.float32))
    elif TYPE == "Q6_K":
        pair = tl.load(scales_ptr + row * (WIDTH // 32) + unit, mask=mask, other=0).to(tl.int32)
        scale = (pair << 24) >> 24 if HALF == 0 else pair >> 8
        # Not contiguous: said so that the compiler divides this load as it divides the words. And
        # aligned to no more than a number, or it would load two at once.
        at = tl.multiple_of(supers_ptr + row * (WIDTH // 256) + unit // 8, (2, 1))
        at = tl.max_contiguous(at, (2, 1))
        d = tl.load(at, mask=mask, other=0.0)
        scale = scale.to(tl.float32) * d.to(tl.float32)
        bias = scale * -32.0
    elif TYPE == "Q4_1":
        pair = tl.load(scales_ptr + row * (WIDTH // 32) + unit, mask=mask, other=0)
        scale = _low_half(pair)
        bias = _high_half(pair)
    else:
        block = unit // 2 if TYPE == "Q8_0" else unit
        d = tl.load(scales_ptr + row * (WIDTH // 32) + block, mask=mask, other=0.0)
        scale = d.to(tl.float32)
        bias = scale * (-128.0 if TYPE == "Q8_0" else -8.0)
    return scale, bias


@triton.jit
def weight_pairs(
    low_ptr,
    high_ptr,
    scales_ptr,
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
    NATIVE: tl.constexpr,
):
    """Weights of UNITS units of rows, times 2**-LOWER: [4 * UNITS, ROWS, 2, ..., 2] in DTYPE.

    Dimensions from the third on are of a word's fields: which half of the word, then the place in
    the half, its highest bit first. Units past the end of a row are zero.
    row: [1, ROWS] int64. LOWER: 0 or 64; 64 saves a multiplication per weight and needs the
    exponent range of bfloat16 or float32; in bfloat16, scales are then rounded to it, too.
    NATIVE: compiled, not interpreted.
    """
    ROW_UNITS: tl.constexpr = WIDTH * FIELD // 128
    WHOLE: tl.constexpr = ROW_UNITS % UNITS == 0
    word = first_unit * 4 + tl.arange(0, 4 * UNITS)[:, None]
    word_ok = (word < 4 * ROW_UNITS) | WHOLE  # folds to no mask
    at = row * (4 * ROW_UNITS)
    low = tl.load(low_ptr + at + word, mask=word_ok, other=0)
    high = low
    if HIGH > 0:
        high_at = tl.multiple_of(high_ptr + at + word, (4 * HIGH, 1))
        high = tl.load(high_at, mask=word_ok, other=0).to(tl.int32)
    PAIRED: tl.constexpr = tl.bfloat16 == DTYPE and LOWER > 0
    if PAIRED and HIGH > 0:
        high = (high & 0xFFFF) | (high << 14)  # the halves' bits as far apart as their fields
    scale, bias = group_scales(scales_ptr, supers_ptr, row, first_unit, UNITS, 0, TYPE, WIDTH)
    scale, bias = _spread(scale, bias, PAIRED, LOWER, FIELD + HIGH)
    w0 = _pair(low, high, scale, bias, 0, FIELD, HIGH, DTYPE, LOWER, PAIRED, NATIVE)
    w1 = _pair(low, high, scale, bias, 1, FIELD, HIGH, DTYPE, LOWER, PAIRED, NATIVE)
    # A join adds a last dimension.
    if FIELD == 8:
        pairs = tl.join(w0, w1)
    else:
        if TYPE == "Q6_K":
            scale, bias = group_scales(
                scales_ptr, supers_ptr, row, first_unit, UNITS, 1, TYPE, WIDTH
            )
            scale, bias = _spread(scale, bias, PAIRED, LOWER, FIELD + HIGH)
        w2 = _pair(low, high, scale, bias, 2, FIELD, HIGH, DTYPE, LOWER, PAIRED, NATIVE)
        w3 = _pair(low, high, scale, bias, 3, FIELD, HIGH, DTYPE, LOWER, PAIRED, NATIVE)
        pairs = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return pairs


@triton.jit
def _spread(scale, bias, PAIRED: tl.constexpr, LOWER: tl.constexpr, BITS: tl.constexpr):
    """[UNITS, ROWS] to [4 * UNITS, ROWS], each unit's value for its words, as ``_pair`` takes it.

    PAIRED: in bfloat16, twice in an int32. What rounding the scale adds to a field in the middle of
    its range, the bias takes away again.
    """
    if PAIRED:
        rounded = scale.to(tl.bfloat16)
        bias += (scale - rounded.to(tl.float32)) * (2.0 ** (BITS - 1) - 0.5)
        rounded = (rounded.to(tl.float32) * 2.0 ** (133 - LOWER)).to(tl.bfloat16)
        scale = _twice(rounded)
        bias = _twice((bias * 2.0**-LOWER).to(tl.bfloat16))
    else:
        bias *= 2.0**-LOWER
    return _to_words(scale), _to_words(bias)


@triton.jit
def _twice(x):
    return (x.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF) * 0x10001


@triton.jit
def _pair(
    low,
    high,
    scale,
    bias,
    PLACE: tl.constexpr,
    FIELD: tl.constexpr,
    HIGH: tl.constexpr,
    DTYPE: tl.constexpr,
    LOWER: tl.constexpr,
    PAIRED: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """The weights at PLACE in both halves of each word, [..., 2] in DTYPE."""
    if PAIRED:
        q = (low >> (FIELD * PLACE)) & (((1 << FIELD) - 1) * 0x10001)
        if HIGH > 0:
            FROM: tl.constexpr = high_from(PLACE, HIGH)
            high = high << (FIELD - FROM) if FROM < FIELD else high >> (FROM - FIELD)
            q |= high & ((((1 << HIGH) - 1) << FIELD) * 0x10001)
        # A field in the low bits of a bfloat16 is that number times 2**-133, whole or subnormal.
        if NATIVE:
            both = tl.inline_asm_elementwise(
                "fma.rn.bf16x2 $0, $1, $2, $3;",
                "=r,r,r,r",
                [q, scale, bias],
                dtype=tl.int32,
                is_pure=True,
                pack=1,
            )
            first, second = both, both >> 16
        else:
            first = _bits(_wide(q) * _wide(scale) + _wide(bias))
            second = _bits(_wide(q >> 16) * _wide(scale) + _wide(bias))
        first = first.to(tl.int16).to(tl.bfloat16, bitcast=True)
        second = second.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        first = _weight(low, high, scale, bias, PLACE, FIELD, HIGH, LOWER).to(DTYPE)
        second = _weight(low, high, scale, bias, PLACE + 16 // FIELD, FIELD, HIGH, LOWER)
        second = second.to(DTYPE)
    return tl.join(first, second)


@triton.jit
def _wide(x):
    """The bfloat16 in the low half of an int32, as float32."""
    return (x << 16).to(tl.float32, bitcast=True)


@triton.jit
def _bits(x):
    return x.to(tl.bfloat16).to(tl.int16, bitcast=True)


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
    AT: tl.constexpr = field_at(SLOT, FIELD)
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
