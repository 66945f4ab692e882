// The portable level: four lanes of the compiler's vector type, no intrinsic, no fused
// multiply-add.
#pragma once

#define STEPFUSE_LEVEL_NS scalar
#define STEPFUSE_LANES 4
#include "levels/vectors-inl.h"

namespace stepfuse::scalar {

static constexpr Level kLevel = Level::kScalar;
static constexpr const char* kName = "scalar";
// Accumulators a product kernel may hold in registers, and rows one pass takes.
static constexpr int kAccumulators = 8;
static constexpr int kRowsPass = 4;
static constexpr int kFp4Parts = 1;
static constexpr int kFp4Vectors = 1;

// The element of packed activations.
using Act = float;
SF_INLINE Act to_act(float x) { return round_bf16_one(x); }

SF_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
SF_INLINE float fma_one(float a, float b, float c) { return a * b + c; }
SF_INLINE float reduce_add(Vec v) { return reduce_quad(v); }
SF_INLINE void store_act(Act* p, Vec v) { store(p, as_vec(round_bf16(v))); }

// acc += the pairs (k, k+1) of one weight vector times one activation pair.
SF_INLINE Vec dot_pair(Vec acc, Bits w, const float* pair) {
  acc = fma(as_vec(w << 16), set1(pair[0]), acc);
  return fma(as_vec(w & static_cast<std::int32_t>(0xffff0000u)), set1(pair[1]), acc);
}

// E2M1 codes in the low four bits of each lane.
SF_INLINE Vec decode_e2m1(Bits code) {
  const Bits magnitude = code & 7;
  const Bits normal = (magnitude << 22) + 0x3f000000;
  const Bits small = (magnitude & 1) * 0x3f000000;
  return as_vec((magnitude < 2 ? small : normal) | ((code & 8) << 28));
}

// part[m] += the 8 columns of kLanes rows (`codes`) times the pairs of row m; pair j is at
// act + 2 * (j * stride + m) and holds columns j and j + 4.
template <int M>
SF_INLINE void fp4_dot(Vec (*part)[kFp4Parts], Bits codes, const Act* act, int stride) {
  SF_UNROLL for (int j = 0; j < 4; ++j) {
    const Vec low = decode_e2m1(shift_right(codes, 4 * j));
    const Vec high = decode_e2m1(shift_right(codes, 4 * j + 16));
    SF_UNROLL for (int m = 0; m < M; ++m) {
      const Act* pair = act + 2 * (j * stride + m);
      part[m][0] = fma(low, set1(pair[0]), part[m][0]);
      part[m][0] = fma(high, set1(pair[1]), part[m][0]);
    }
  }
}
SF_INLINE Vec fp4_join(const Vec* part) { return part[0]; }

}  // namespace stepfuse::scalar
