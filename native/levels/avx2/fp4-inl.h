// Byte products of MXFP4 groups, eight output rows at a time; included inside the level's
// namespace.

// Even columns, then odd ones, of eight 32-bit numbers as bytes.
SF_INLINE std::uint64_t octet_bytes(Bits x) {
  const __m256i low = _mm256_shuffle_epi8(
      reinterpret_cast<__m256i>(x),
      _mm256_setr_epi8(0, 8, -1, -1, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                       -1, -1, 0, 8, -1, -1, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m128i both = _mm_or_si128(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(both));
}

// Per octet of one row: its even columns' high and low bytes, then its odd columns'.
SF_INLINE void fp4_pieces(Bits high, Bits low, std::uint64_t* piece) {
  const std::uint64_t highs = octet_bytes(high), lows = octet_bytes(low);
  piece[0] = (highs & 0xffffffffu) | (lows << 32);
  piece[1] = (highs >> 32) | (lows >> 32 << 32);
}

#include "levels/fp4-bytes-inl.h"

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
  Bits whole = bias;
  SF_UNROLL for (int odd = 0; odd < 2; ++odd) {
    whole += reinterpret_cast<Bits>(_mm256_madd_epi16(sums.at[m][odd][0], high_weight));
    whole += reinterpret_cast<Bits>(_mm256_madd_epi16(sums.at[m][odd][1], low_weight));
  }
  return __builtin_convertvector(whole, Vec);
}

// sum[0][m] = one group of columns, without its scale, for one weight vector and M rows from `row`.
template <int M, int V>
SF_INLINE void fp4_group(const Fp4Weights& weights, const Fp4Rows& rows, Vec (*sum)[M]) {
  static_assert(V == 1, "one weight vector of two rows fills the registers");
  const int stride = rows.stride;
  const std::uint8_t* bytes = rows.act + 8 * (stride + rows.row);
  Fp4Sums<M> sums = {};
  if constexpr (M == 1) {
    SF_UNROLL for (int octet = 0; octet < kFp4Group / 8; ++octet) {
      prefetch_octet<V>(weights, octet);
      fp4_octet(sums, weights.nibbles + octet * 4 * kTileRows, bytes + octet * 16 * stride, stride);
    }
  } else {
    // Rolled: unrolled, the compiler spreads the sums over more registers than there are.
    SF_ROLLED for (int octet = 0; octet < kFp4Group / 8; ++octet) {
      prefetch_octet<V>(weights, octet);
      fp4_octet(sums, weights.nibbles + octet * 4 * kTileRows, bytes + octet * 16 * stride, stride);
    }
  }
  SF_UNROLL for (int m = 0; m < M; ++m) {
    const std::uint8_t* own = rows.act + 4 * (rows.row + m);
    const Bits bias = set1_bits(*reinterpret_cast<const IntMem*>(own + 4 * stride));
    sum[0][m] = fp4_total(sums, m, bias) * set1(*reinterpret_cast<const FloatMem*>(own));
  }
}
