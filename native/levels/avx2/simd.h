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
// Rows of an MXFP4 pass: four integer sums each, of one weight vector.
static constexpr int kFp4RowsPass = 2;
static constexpr int kFp4Accumulators = 1;

using Act = float;
SF_INLINE Act to_act(float x) { return round_bf16_one(x); }

SF_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SF_INLINE float fma_one(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// The compiler widens bytes one by one.
SF_INLINE Bits load_bytes(const std::uint8_t* p) {
  return reinterpret_cast<Bits>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
SF_INLINE float reduce_add(Vec v) {
  return reduce_quad(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
                     __builtin_shufflevector(v, v, 4, 5, 6, 7));
}
SF_INLINE void store_act(Act* p, Vec v) { store(p, as_vec(round_bf16(v))); }

#include "levels/avx2/fp4-inl.h"

}  // namespace stepfuse::avx2
