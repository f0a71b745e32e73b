"""What the quantised kernels share: units of planes, and their fields as numbers.

Integer-to-float conversions would bound these kernels, so a field is masked out where it stands in
a word, and its bits are read as a float, exact: in the low 23 bits of a float32 they are the
subnormal q * 2**(at - 149); in the low 8 of a bfloat16, q * 2**(at - 133), as exponents 0 and 1
space their numbers alike. What it is multiplied by carries the missing power of two.
The same source runs compiled on CUDA and under ``TRITON_INTERPRET=1`` on CPU tensors.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl

from .quant_formats import TYPES


@triton.constexpr_function
def field_bits(type_name):
    """Of a field in the ``low`` plane; ``high_bits`` are in the other."""
    return TYPES[type_name].field_bits


@triton.constexpr_function
def high_bits(type_name):
    return TYPES[type_name].high_bits


@triton.constexpr_function
def unit_size(type_name):
    """Weights in four words."""
    return TYPES[type_name].unit


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
def load_units(
    planes,
    row,
    first_unit,
    UNITS: tl.constexpr,
    TYPE: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """(low, high, scales, supers) of UNITS units of rows, as they are stored, high as int32.

    planes: pointers to the four planes; see quant_formats.Planes. row: [1, R] int64.
    first_unit: a number, or [1, R]. WIDTH: in_features. Zero past the end of a row; WHOLE: units
    end with it. low: [4 * UNITS, R]. A type that lacks high or supers has another plane there.
    """
    low_ptr, high_ptr, scales_ptr, supers_ptr = planes
    UNIT: tl.constexpr = unit_size(TYPE)
    HIGH: tl.constexpr = high_bits(TYPE)
    word = first_unit * 4 + tl.arange(0, 4 * UNITS)[:, None]
    word_ok = (word < WIDTH // UNIT * 4) | WHOLE  # folds to no mask
    at = row * (WIDTH // UNIT * 4) + word
    low = tl.load(low_ptr + at, mask=word_ok, other=0)
    high = low
    if HIGH > 0:
        high_at = tl.multiple_of(high_ptr + at, (4 * HIGH, 1))
        high = tl.load(high_at, mask=word_ok, other=0).to(tl.int32)
    unit = first_unit + tl.arange(0, UNITS)[:, None]
    unit_ok = (unit < WIDTH // UNIT) | WHOLE
    if TYPE == "Q4_K" or TYPE == "Q5_K":
        at = scales_ptr + row * (WIDTH // 64) + (word // 32 * 4 + word % 4)
        scales = tl.load(tl.multiple_of(at, (16, 1)), mask=word_ok, other=0)
        supers = scales
    elif TYPE == "Q6_K":
        at = scales_ptr + row * (WIDTH // 32) + unit
        scales = tl.load(at, mask=unit_ok, other=0)
        # Not contiguous: said so that the compiler divides this load as it divides the words. And
        # aligned to no more than a number, or it would load two at once.
        at = tl.multiple_of(supers_ptr + row * (WIDTH // 256) + unit // 8, (2, 1))
        at = tl.max_contiguous(at, (2, 1))
        supers = tl.load(at, mask=unit_ok, other=0.0)
    else:
        block = unit // 2 if TYPE == "Q8_0" else unit
        scales = tl.load(scales_ptr + row * (WIDTH // 32) + block, mask=unit_ok, other=0)
        supers = scales
    return low, high, scales, supers


@triton.jit
def unit_scales(units, first_unit, HALF: tl.constexpr, TYPE: tl.constexpr):
    """(scale, bias) [UNITS, R] float32 of ``load_units``: a weight is scale * q + bias.

    HALF: of a unit, where the halves differ (Q6_K).
    """
    _, _, scales, supers = units
    if TYPE == "Q4_K" or TYPE == "Q5_K":
        d, scale, least, top = split_words(scales)
        shift = (first_unit + tl.arange(0, scale.shape[0])[:, None]) % 8 * 4
        top = top >> shift
        scale = ((scale >> shift) & 15) | ((top << 4) & 48)
        least = ((least >> shift) & 15) | ((top << 2) & 48)
        scale = _low_half(d) * scale.to(tl.float32)
        bias = -(_high_half(d) * least.to(tl.float32))
    elif TYPE == "Q6_K":
        scale = scales.to(tl.int32)
        scale = (scale << 24) >> 24 if HALF == 0 else scale >> 8
        scale = scale.to(tl.float32) * supers.to(tl.float32)
        bias = scale * -32.0
    elif TYPE == "Q4_1":
        scale = _low_half(scales)
        bias = _high_half(scales)
    else:
        scale = scales.to(tl.float32)
        bias = scale * (-128.0 if TYPE == "Q8_0" else -8.0)
    return scale, bias


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
def weight_pairs(
    units,
    first_unit,
    TYPE: tl.constexpr,
    DTYPE: tl.constexpr,
    LOWER: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Weights of ``load_units``, times 2**-LOWER: [4 * UNITS, R, 2, ..., 2] in DTYPE.

    Dimensions from the third on are of a word's fields: which half of the word, then the place in
    the half, its highest bit first. LOWER: 0 or 64; 64 saves a multiplication per weight and needs
    the exponent range of bfloat16 or float32; in bfloat16, scales are then rounded to it, too.
    NATIVE: compiled, not interpreted.
    """
    low, high, _, _ = units
    FIELD: tl.constexpr = field_bits(TYPE)
    HIGH: tl.constexpr = high_bits(TYPE)
    PAIRED: tl.constexpr = tl.bfloat16 == DTYPE and LOWER > 0
    if PAIRED and HIGH > 0:
        high = (high & 0xFFFF) | (high << 14)  # the halves' bits as far apart as their fields
    maps = _maps(units, first_unit, 0, TYPE, PAIRED, LOWER)
    w0 = _pair(low, high, maps, 0, FIELD, HIGH, DTYPE, LOWER, PAIRED, NATIVE)
    w1 = _pair(low, high, maps, 1, FIELD, HIGH, DTYPE, LOWER, PAIRED, NATIVE)
    # A join adds a last dimension.
    if FIELD == 8:
        pairs = tl.join(w0, w1)
    else:
        if TYPE == "Q6_K":
            maps = _maps(units, first_unit, 1, TYPE, PAIRED, LOWER)
        w2 = _pair(low, high, maps, 2, FIELD, HIGH, DTYPE, LOWER, PAIRED, NATIVE)
        w3 = _pair(low, high, maps, 3, FIELD, HIGH, DTYPE, LOWER, PAIRED, NATIVE)
        pairs = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return pairs


@triton.jit
def _maps(
    units,
    first_unit,
    HALF: tl.constexpr,
    TYPE: tl.constexpr,
    PAIRED: tl.constexpr,
    LOWER: tl.constexpr,
):
    """(scale, raised scale, bias) of every word, [4 * UNITS, R], as ``_pair`` takes them.

    raised: for fields that stand 4 bits up. PAIRED: in bfloat16, twice in an int32. What rounding
    the scale adds to a field in the middle of its range, the bias takes away again.
    """
    scale, bias = unit_scales(units, first_unit, HALF, TYPE)
    raised = scale
    if PAIRED:
        rounded = scale.to(tl.bfloat16).to(tl.float32)
        MIDDLE: tl.constexpr = 2.0 ** (field_bits(TYPE) + high_bits(TYPE) - 1) - 0.5
        bias += (scale - rounded) * MIDDLE
        scale = _twice(rounded * 2.0 ** (133 - LOWER))
        raised = _twice(rounded * 2.0 ** (129 - LOWER))
        bias = _twice(bias * 2.0**-LOWER)
    else:
        bias *= 2.0**-LOWER
    return _to_words(scale), _to_words(raised), _to_words(bias)


@triton.jit
def _twice(x):
    return (x.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF) * 0x10001


@triton.jit
def _pair(
    low,
    high,
    maps,
    PLACE: tl.constexpr,
    FIELD: tl.constexpr,
    HIGH: tl.constexpr,
    DTYPE: tl.constexpr,
    LOWER: tl.constexpr,
    PAIRED: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """The weights at PLACE in both halves of each word, [..., 2] in DTYPE."""
    scale, raised, bias = maps
    if PAIRED:
        # Two places share a shift, where fields of 4 bits are whole: one stays 4 bits up.
        AT: tl.constexpr = PLACE % 2 * 4 if FIELD + HIGH == 4 else 0
        q = (low >> (FIELD * PLACE - AT)) & (((1 << FIELD) - 1) * (0x10001 << AT))
        if HIGH > 0:
            FROM: tl.constexpr = high_from(PLACE, HIGH)
            high = high << (FIELD - FROM) if FROM < FIELD else high >> (FROM - FIELD)
            q |= high & ((((1 << HIGH) - 1) << FIELD) * 0x10001)
        scale = raised if AT > 0 else scale
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
