// AVX-512 with BF16 dot products: weights meet BF16 activations unwidened.
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
// Beyond 6 the broadcasts two weight vectors share no longer fit beside the sums.
static constexpr int kFp4Accumulators = 6;

using Act = bf16_t;
SF_INLINE Act to_act(float x) { return to_bf16(x); }
SF_INLINE void store_act(Act* p, Vec v) { store_bf16(p, v); }

#include "levels/avx512/wide-inl.h"

typedef std::int32_t PairMem __attribute__((aligned(2), may_alias));
SF_INLINE Vec dot_pair(Vec acc, Bits w, const bf16_t* pair) {
  const Bits both = set1_bits(*reinterpret_cast<const PairMem*>(pair));
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(both));
}

template <int M>
SF_INLINE void fp4_dot(Vec* sum, Bits codes, const Act* act, int stride) {
  SF_UNROLL for (int j = 0; j < 4; ++j) {
    const Bits words = e2m1_words(shift_right(codes, 4 * j));
    SF_UNROLL for (int m = 0; m < M; ++m) {
      sum[m] = dot_pair(sum[m], words, act + 2 * (j * stride + m));
    }
  }
}

#include "levels/fp4-pairs-inl.h"

}  // namespace stepfuse::avx512_bf16
