// MXFP4 groups in integers; included inside the level's namespace.
//
// Twice an E2M1 value is an integer of at most 12, so a group of 32 columns can be summed exactly:
// the inputs (rounded to BF16) become 16-bit fixed point over a power of two, cut into two signed
// bytes, and two byte products per instruction replace one FMA per decoded value. Inputs of at
// least 1/64 of their group's largest keep all their bits; smaller ones are off by at most 2^-15 of
// the largest, where BF16 itself costs 2^-9 of each.
//
// Activations of a group: FP32 scale [rows], int32 12 * sum of the inputs [rows], then
// [octet][even, odd columns][rows][high byte, low byte][4].
static constexpr int kFp4RowBytes = 8 + 2 * kFp4Group;
// Weights are looked up with 12 added, so that they are unsigned: 24 * 128 * 2 columns * 4 octets
// stays below 2^15.
static constexpr int kFp4Bias = 12;
// Largest fixed-point input: its high byte rounds to 127.
static constexpr float kFp4Most = 32512.0f;

typedef std::int32_t IntMem __attribute__((aligned(1), may_alias));
typedef float FloatMem __attribute__((aligned(1), may_alias));
typedef std::uint64_t OctetMem __attribute__((aligned(1), may_alias));

// The power of two that brings `most` into fixed point; NaN where the group holds a NaN or
// infinity.
SF_INLINE float fp4_step(float most) {
  if (!(most <= 3.4028235e38f)) return __builtin_nanf("");
  const int exponent = (float_bits(most) >> 23) - 14;
  const float step = bits_float((exponent < 1 ? 1 : exponent) << 23);
  return most > kFp4Most * step ? 2.0f * step : step;
}

// Even columns, then odd ones, of eight 32-bit numbers as bytes.
SF_INLINE std::uint64_t octet_bytes(Bits x) {
  const __m256i low = _mm256_shuffle_epi8(
      reinterpret_cast<__m256i>(x),
      _mm256_setr_epi8(0, 8, -1, -1, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                       -1, -1, 0, 8, -1, -1, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m128i both = _mm_or_si128(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(both));
}

SF_INLINE void fp4_pack(const float* x, int stride, int row, void* act) {
  Vec rounded[4];
  Bits most{};
  for (int i = 0; i < 4; ++i) {
    rounded[i] = as_vec(round_bf16(load(x + i * kLanes)));
    // Magnitudes order as integers, infinities and NaNs on top.
    most = max_bits(most, as_bits(abs(rounded[i])));
  }
  std::int32_t top = 0;
  for (int lane = 0; lane < kLanes; ++lane) top = most[lane] > top ? most[lane] : top;
  const float step = fp4_step(bits_float(top));
  const bool usable = step == step;
  // 2^-e of a step 2^e is exact: e lies in [-126, 114].
  const Vec inverse = set1(usable ? 1.0f / step : 0.0f);
  std::uint8_t* to = static_cast<std::uint8_t*>(act);
  Bits total{};
  for (int i = 0; i < 4; ++i) {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const Vec shifted = rounded[i] * inverse + 12582912.0f;
    const Bits whole = usable ? as_bits(shifted) - as_bits(set1(12582912.0f)) : Bits{};
    const Bits high = (whole + 128) >> 8;
    const std::uint64_t highs = octet_bytes(high), lows = octet_bytes(whole - (high << 8));
    total += whole;
    std::uint8_t* octet = to + 8 * stride + (i * 2 * stride + row) * 8;
    *reinterpret_cast<OctetMem*>(octet) = (highs & 0xffffffffu) | (lows << 32);
    *reinterpret_cast<OctetMem*>(octet + 8 * stride) = (highs >> 32) | (lows >> 32 << 32);
  }
  std::int32_t sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += total[lane];
  // Half: the table holds twice the E2M1 values.
  *reinterpret_cast<FloatMem*>(to + 4 * row) = 0.5f * step;
  *reinterpret_cast<IntMem*>(to + 4 * stride + 4 * row) = kFp4Bias * sum;
}

SF_INLINE __m256i e2m1_doubled() {
  return _mm256_broadcastsi128_si256(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

// [rows][even, odd columns][high, low byte] in 16-bit lanes.
template <int M>
struct Fp4Sums {
  __m256i at[M][2][2];
};

// One octet of eight rows of weights times M rows of activations.
template <int M>
SF_INLINE void fp4_octet(Fp4Sums<M>& sums, const std::uint8_t* nibbles, const std::uint8_t* act,
                         int stride) {
  const __m256i raw = reinterpret_cast<__m256i>(load_bits(nibbles));
  SF_UNROLL for (int odd = 0; odd < 2; ++odd) {
    const __m256i index =
        _mm256_and_si256(odd ? _mm256_srli_epi16(raw, 4) : raw, _mm256_set1_epi8(15));
    const __m256i weight = _mm256_shuffle_epi8(e2m1_doubled(), index);
    SF_UNROLL for (int m = 0; m < M; ++m) {
      SF_UNROLL for (int low = 0; low < 2; ++low) {
        const IntMem* from =
            reinterpret_cast<const IntMem*>(act + 8 * (odd * stride + m) + 4 * low);
        const __m256i product = _mm256_maddubs_epi16(weight, _mm256_set1_epi32(*from));
        sums.at[m][odd][low] = _mm256_add_epi16(sums.at[m][odd][low], product);
      }
    }
  }
}

// The group's sum of one row, exact: below 12 * 32 * 32640 < 2^24.
template <int M>
SF_INLINE Vec fp4_total(const Fp4Sums<M>& sums, int m, Bits bias) {
  const __m256i high_weight = _mm256_set1_epi16(256), low_weight = _mm256_set1_epi16(1);
  Bits whole = -bias;
  SF_UNROLL for (int odd = 0; odd < 2; ++odd) {
    whole += reinterpret_cast<Bits>(_mm256_madd_epi16(sums.at[m][odd][0], high_weight));
    whole += reinterpret_cast<Bits>(_mm256_madd_epi16(sums.at[m][odd][1], low_weight));
  }
  return __builtin_convertvector(whole, Vec);
}

// sum[0][m] = one group of columns, without its scale, for one weight vector and M rows from `row`.
template <int M, int V>
SF_INLINE void fp4_group(const std::uint8_t* nibbles, const void* act, int stride, int row,
                         Vec (*sum)[M]) {
  static_assert(V == 1, "one weight vector of two rows fills the registers");
  const std::uint8_t* head = static_cast<const std::uint8_t*>(act);
  const std::uint8_t* bytes = head + 8 * stride + 8 * row;
  Fp4Sums<M> sums = {};
  if constexpr (M == 1) {
    SF_UNROLL for (int octet = 0; octet < kFp4Group / 8; ++octet) {
      fp4_octet(sums, nibbles + octet * 4 * kTileRows, bytes + octet * 16 * stride, stride);
    }
  } else {
    // Rolled: unrolled, the compiler spreads the sums over more registers than there are.
    SF_ROLLED for (int octet = 0; octet < kFp4Group / 8; ++octet) {
      fp4_octet(sums, nibbles + octet * 4 * kTileRows, bytes + octet * 16 * stride, stride);
    }
  }
  SF_UNROLL for (int m = 0; m < M; ++m) {
    const std::uint8_t* own = head + 4 * (row + m);
    const Bits bias = set1_bits(*reinterpret_cast<const IntMem*>(own + 4 * stride));
    sum[0][m] = fp4_total(sums, m, bias) * set1(*reinterpret_cast<const FloatMem*>(own));
  }
}
