// AVX-512 (F, BW, DQ, VL) without BF16 products: sixteen lanes, weights widened to FP32.
#pragma once

#ifdef STEPFUSE_EMULATE
#include "tests/emulated/avx512.h"
#else
#include <immintrin.h>
#endif

#define STEPFUSE_LEVEL_NS avx512
#define STEPFUSE_LANES 16
#include "levels/vectors-inl.h"

namespace stepfuse::avx512 {

static constexpr Level kLevel = Level::kAvx512;
static constexpr const char* kName = "avx512";
// Thirty-two registers: eight rows by the two vectors of a tile, and the broadcasts come from
// memory.
static constexpr int kAccumulators = 16;
static constexpr int kRowsPass = 8;
static constexpr int kFp4RowsPass = kRowsPass;
// Beyond 4 the broadcasts two weight vectors share no longer fit beside the sums.
static constexpr int kFp4Accumulators = 8;

using Act = float;
SF_INLINE Act to_act(float x) { return round_bf16_one(x); }
SF_INLINE void store_act(Act* p, Vec v) { store(p, as_vec(round_bf16(v))); }

#include "levels/avx512/wide-inl.h"

// The BF16 value of the E2M1 code in the low four bits of each 16-bit word. The look-up reads five
// bits, so the table stands there twice and the next nibble needs no mask.
SF_INLINE Bits e2m1_words(Bits codes) {
  const __m512i table = _mm512_set4_epi64(
      static_cast<long long>(0xc0c0c080c040c000ull), static_cast<long long>(0xbfc0bf80bf008000ull),
      static_cast<long long>(0x40c0408040404000ull), static_cast<long long>(0x3fc03f803f000000ull));
  return reinterpret_cast<Bits>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(codes), table));
}

template <int M>
SF_INLINE void fp4_dot(Vec* sum, Bits codes, const Act* act, int stride) {
  SF_UNROLL for (int j = 0; j < 4; ++j) {
    const Bits words = e2m1_words(shift_right(codes, 4 * j));
    SF_UNROLL for (int m = 0; m < M; ++m) {
      const Act* pair = act + 2 * (j * stride + m);
      sum[m] = fma(even_words(words), set1(pair[0]), sum[m]);
      sum[m] = fma(odd_words(words), set1(pair[1]), sum[m]);
    }
  }
}

#include "levels/fp4-pairs-inl.h"

}  // namespace stepfuse::avx512
