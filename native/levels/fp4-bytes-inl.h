// MXFP4 groups in integers: what levels with byte products share; included inside the level's
// namespace, after fp4_pieces.
//
// Twice an E2M1 value is an integer of at most 12, so a group of 32 columns can be summed exactly:
// the inputs (rounded to BF16) become 16-bit fixed point over a power of two, cut into two signed
// bytes, and two byte products replace one FMA per decoded value. Inputs of at least 1/64 of their
// group's largest keep all their bits; smaller ones are off by at most 2^-15 of the largest, where
// BF16 itself costs 2^-9 of each.
//
// Activations of a group: FP32 scale [rows], int32 -12 * sum of the inputs [rows], then
// [octet][even, odd columns][rows][high byte, low byte][4].
static constexpr int kFp4RowBytes = 8 + 2 * kFp4Group;
// Weights are looked up with 12 added, so that they are unsigned: 24 * 128 * 2 columns * 4 octets
// stays below 2^15.
static constexpr int kFp4Bias = 12;
// Largest fixed-point input: its high byte rounds to 127.
static constexpr float kFp4Most = 32512.0f;

typedef std::int32_t IntMem __attribute__((aligned(1), may_alias));
typedef float FloatMem __attribute__((aligned(1), may_alias));
typedef std::uint64_t PieceMem __attribute__((aligned(1), may_alias));

// The power of two that brings `most` into fixed point; NaN where the group holds a NaN or
// infinity.
SF_INLINE float fp4_step(float most) {
  if (!(most <= 3.4028235e38f)) return __builtin_nanf("");
  const int exponent = (float_bits(most) >> 23) - 14;
  const float step = bits_float((exponent < 1 ? 1 : exponent) << 23);
  return most > kFp4Most * step ? 2.0f * step : step;
}

SF_INLINE void fp4_pack(const float* x, int stride, int row, void* act) {
  constexpr int kVectors = kFp4Group / kLanes;
  Vec rounded[kVectors];
  Bits most{};
  SF_UNROLL for (int i = 0; i < kVectors; ++i) {
    rounded[i] = as_vec(round_bf16(load(x + i * kLanes)));
    // Magnitudes order as integers, infinities and NaNs on top.
    most = max_bits(most, as_bits(abs(rounded[i])));
  }
  const float step = fp4_step(bits_float(reduce_max_bits(most)));
  const bool usable = step == step;
  // 2^-e of a step 2^e is exact: e lies in [-126, 114].
  const Vec inverse = set1(usable ? 1.0f / step : 0.0f);
  std::uint8_t* to = static_cast<std::uint8_t*>(act);
  std::uint8_t* pieces = to + 8 * stride + 8 * row;
  Bits total{};
  SF_UNROLL for (int i = 0; i < kVectors; ++i) {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const Vec shifted = rounded[i] * inverse + 12582912.0f;
    const Bits whole = usable ? as_bits(shifted) - as_bits(set1(12582912.0f)) : Bits{};
    const Bits high = (whole + 128) >> 8;
    total += whole;
    std::uint64_t piece[kLanes / 4];
    fp4_pieces(high, whole - (high << 8), piece);
    SF_UNROLL for (int j = 0; j < kLanes / 4; ++j, pieces += 8 * stride) {
      *reinterpret_cast<PieceMem*>(pieces) = piece[j];
    }
  }
  // Half: the table holds twice the E2M1 values.
  *reinterpret_cast<FloatMem*>(to + 4 * row) = 0.5f * step;
  *reinterpret_cast<IntMem*>(to + 4 * stride + 4 * row) = -kFp4Bias * reduce_add_bits(total);
}

// Interleaves `rows` rows packed alone into one block.
SF_INLINE void fp4_gather(const std::uint8_t* const* alone, int rows, int groups,
                          std::uint8_t* block) {
  for (int g = 0; g < groups; ++g, block += rows * kFp4RowBytes) {
    for (int r = 0; r < rows; ++r) {
      const std::uint8_t* from = alone[r] + g * kFp4RowBytes;
      *reinterpret_cast<IntMem*>(block + 4 * r) = *reinterpret_cast<const IntMem*>(from);
      *reinterpret_cast<IntMem*>(block + 4 * (rows + r)) =
          *reinterpret_cast<const IntMem*>(from + 4);
      std::uint8_t* to = block + 8 * (rows + r);
      SF_UNROLL for (int piece = 0; piece < kFp4Group / 4; ++piece, to += 8 * rows) {
        *reinterpret_cast<PieceMem*>(to) = *reinterpret_cast<const PieceMem*>(from + 8 + 8 * piece);
      }
    }
  }
}
