// AVX-512 with BF16 and byte products: weights meet activations unwidened.
#pragma once

#ifdef STEPFUSE_EMULATE
#include "tests/emulated/avx512.h"
#else
#include <immintrin.h>
#endif

#define STEPFUSE_LEVEL_NS avx512_bf16
#define STEPFUSE_LANES 16
#include "levels/vectors-inl.h"

namespace stepfuse::avx512_bf16 {

static constexpr Level kLevel = Level::kAvx512Bf16;
static constexpr const char* kName = "avx512_bf16";
static constexpr int kAccumulators = 16;
static constexpr int kRowsPass = 8;
static constexpr int kFp4RowsPass = kRowsPass;
// Two integer sums each: 16 of them beside two weights, the table and a mask.
static constexpr int kFp4Accumulators = 8;

using Act = bf16_t;
SF_INLINE Act to_act(float x) { return to_bf16(x); }
SF_INLINE void store_act(Act* p, Vec v) { store_bf16(p, v); }

#include "levels/avx512/wide-inl.h"

typedef std::int32_t PairMem __attribute__((aligned(2), may_alias));
SF_INLINE Vec dot_pair(Vec acc, Bits w, const bf16_t* pair) {
  const Bits both = set1_bits(*reinterpret_cast<const PairMem*>(pair));
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(both));
}

#include "levels/avx512_bf16/fp4-inl.h"

}  // namespace stepfuse::avx512_bf16
