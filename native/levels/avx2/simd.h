// AVX2 with FMA: eight lanes. BF16 and MXFP4 weights are widened to FP32 in registers.
#pragma once

#include <immintrin.h>

#define STEPFUSE_LEVEL_NS avx2
#define STEPFUSE_LANES 8
#include "levels/vectors-inl.h"

namespace stepfuse::avx2 {

static constexpr Level kLevel = Level::kAvx2;
static constexpr const char* kName = "avx2";
// Sixteen registers: eight accumulators leave room for a widened weight pair and broadcasts, and
// two FMA ports of latency four want eight chains.
static constexpr int kAccumulators = 8;
static constexpr int kRowsPass = 4;
static constexpr int kFp4Parts = 2;
// Weight vectors an MXFP4 pass decodes side by side at one row.
static constexpr int kFp4Vectors = 4;

using Act = float;
SF_INLINE Act to_act(float x) { return round_bf16_one(x); }

SF_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SF_INLINE float fma_one(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SF_INLINE float reduce_add(Vec v) {
  return reduce_quad(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
                     __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
SF_INLINE void store_act(Act* p, Vec v) { store(p, as_vec(round_bf16(v))); }

SF_INLINE Vec dot_pair(Vec acc, Bits w, const float* pair) {
  acc = fma(as_vec(w << 16), set1(pair[0]), acc);
  return fma(as_vec(w & static_cast<std::int32_t>(0xffff0000u)), set1(pair[1]), acc);
}

// Low and high byte of the BF16 values of the 16 E2M1 codes.
SF_INLINE __m256i e2m1_low() {
  return _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
}
SF_INLINE __m256i e2m1_high() {
  return _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                   -128, -65, -65, -65, -64, -64, -64, -64));
}
SF_INLINE Vec even_words(__m256i w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
SF_INLINE Vec odd_words(__m256i w) {
  return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
typedef double PairMem __attribute__((aligned(4), may_alias));
SF_INLINE Vec broadcast_pair(const float* pair) {
  return _mm256_castpd_ps(_mm256_set1_pd(*reinterpret_cast<const PairMem*>(pair)));
}

// Eight rows of four bytes. The even nibbles of a row are columns 0 2 4 6, the odd ones 1 3 5 7;
// interleaving their low and high bytes gives words, so even words of a row are columns (0, 4) or
// (1, 5) and odd words (2, 6) or (3, 7): the pairs activations are packed in. part[m][0] collects
// two lanes of each of the rows 0 1 | 4 5, part[m][1] of 2 3 | 6 7; fp4_join adds neighbours.
template <int M>
SF_INLINE void fp4_dot(Vec (*part)[kFp4Parts], Bits codes, const Act* act, int stride) {
  const __m256i v = reinterpret_cast<__m256i>(codes), mask = _mm256_set1_epi8(15);
  SF_UNROLL for (int odd = 0; odd < 2; ++odd) {
    const __m256i index = _mm256_and_si256(odd ? _mm256_srli_epi32(v, 4) : v, mask);
    const __m256i low = _mm256_shuffle_epi8(e2m1_low(), index);
    const __m256i high = _mm256_shuffle_epi8(e2m1_high(), index);
    const __m256i words[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
    SF_UNROLL for (int p = 0; p < 2; ++p) {
      SF_UNROLL for (int m = 0; m < M; ++m) {
        const Act* pair = act + 2 * (odd * stride + m);
        part[m][p] = fma(even_words(words[p]), broadcast_pair(pair), part[m][p]);
        part[m][p] = fma(odd_words(words[p]), broadcast_pair(pair + 4 * stride), part[m][p]);
      }
    }
  }
}
SF_INLINE Vec fp4_join(const Vec* part) { return _mm256_hadd_ps(part[0], part[1]); }

}  // namespace stepfuse::avx2
