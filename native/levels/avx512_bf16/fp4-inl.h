// Byte products of MXFP4 groups, sixteen output rows at a time; included inside the level's
// namespace. Every processor with BF16 products has those of bytes (VNNI), which detect.cc checks.

// Per octet of one row: its even columns' high and low bytes, then its odd columns'.
SF_INLINE void fp4_pieces(Bits high, Bits low, std::uint64_t* piece) {
  const __m128i order = _mm_set_epi8(15, 13, 11, 9, 14, 12, 10, 8, 7, 5, 3, 1, 6, 4, 2, 0);
  const __m128i highs =
      _mm_shuffle_epi8(_mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(high)), order);
  const __m128i lows =
      _mm_shuffle_epi8(_mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(low)), order);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(piece), _mm_unpacklo_epi32(highs, lows));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(piece + 2), _mm_unpackhi_epi32(highs, lows));
}

#include "levels/fp4-bytes-inl.h"

// Twice the value of each code of four bits, plus kFp4Bias.
SF_INLINE __m512i e2m1_doubled() {
  return _mm512_set4_epi64(0x040608090a0b0c, 0x181412100f0e0d0c, 0x040608090a0b0c,
                           0x181412100f0e0d0c);
}

template <int M, int V>
struct Fp4Sums {
  __m512i high[V][M], low[V][M];
};

// One octet of V weight vectors times M rows of activations.
template <int M, int V>
SF_INLINE void fp4_octet(Fp4Sums<M, V>& sums, const std::uint8_t* nibbles, const std::uint8_t* act,
                         int stride) {
  const __m512i mask = _mm512_set1_epi8(15);
  SF_UNROLL for (int v = 0; v < V; ++v) {
    const __m512i raw = reinterpret_cast<__m512i>(load_bits(nibbles + v * 4 * kLanes));
    SF_UNROLL for (int odd = 0; odd < 2; ++odd) {
      const __m512i code = odd ? _mm512_srli_epi16(raw, 4) : raw;
      const __m512i weight = _mm512_shuffle_epi8(e2m1_doubled(), _mm512_and_si512(code, mask));
      SF_UNROLL for (int m = 0; m < M; ++m) {
        const IntMem* from = reinterpret_cast<const IntMem*>(act + 8 * (odd * stride + m));
        sums.high[v][m] = _mm512_dpbusd_epi32(sums.high[v][m], weight, _mm512_set1_epi32(from[0]));
        sums.low[v][m] = _mm512_dpbusd_epi32(sums.low[v][m], weight, _mm512_set1_epi32(from[1]));
      }
    }
  }
}

// sum[v][m] = one group of columns, without its scale, for V weight vectors and M rows from `row`.
// The integer sum is exact: below 12 * 32 * 32640 < 2^24.
template <int M, int V>
SF_INLINE void fp4_group(const Fp4Weights& weights, const Fp4Rows& rows, Vec (*sum)[M]) {
  const int stride = rows.stride;
  const std::uint8_t* own = rows.act + 4 * rows.row;
  const std::uint8_t* bytes = rows.act + 8 * (stride + rows.row);
  Fp4Sums<M, V> sums;
  SF_UNROLL for (int m = 0; m < M; ++m) {
    const Bits bias = set1_bits(*reinterpret_cast<const IntMem*>(own + 4 * (stride + m)));
    SF_UNROLL for (int v = 0; v < V; ++v) {
      sums.high[v][m] = __m512i{};
      sums.low[v][m] = reinterpret_cast<__m512i>(bias);
    }
  }
  SF_UNROLL for (int octet = 0; octet < kFp4Group / 8; ++octet) {
    prefetch_octet<V>(weights, octet);
    fp4_octet(sums, weights.nibbles + octet * 4 * kTileRows, bytes + octet * 16 * stride, stride);
  }
  SF_UNROLL for (int m = 0; m < M; ++m) {
    const Vec scale = set1(*reinterpret_cast<const FloatMem*>(own + 4 * m));
    SF_UNROLL for (int v = 0; v < V; ++v) {
      const Bits whole =
          (reinterpret_cast<Bits>(sums.high[v][m]) << 8) + reinterpret_cast<Bits>(sums.low[v][m]);
      sum[v][m] = __builtin_convertvector(whole, Vec) * scale;
    }
  }
}
