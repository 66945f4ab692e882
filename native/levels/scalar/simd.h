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
static constexpr int kFp4RowsPass = kRowsPass;
static constexpr int kFp4Accumulators = 4;

// The element of packed activations.
using Act = float;
SF_INLINE Act to_act(float x) { return round_bf16_one(x); }

SF_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
SF_INLINE float fma_one(float a, float b, float c) { return a * b + c; }
SF_INLINE Bits load_bytes(const std::uint8_t* p) { return Bits{p[0], p[1], p[2], p[3]}; }
SF_INLINE float reduce_add(Vec v) { return reduce_quad(v); }
SF_INLINE void store_act(Act* p, Vec v) { store(p, as_vec(round_bf16(v))); }

// E2M1 codes in the low four bits of each lane.
SF_INLINE Vec decode_e2m1(Bits code) {
  const Bits magnitude = code & 7;
  const Bits normal = (magnitude << 22) + 0x3f000000;
  const Bits small = (magnitude & 1) * 0x3f000000;
  return as_vec((magnitude < 2 ? small : normal) | ((code & 8) << 28));
}

// sum[m] += the 8 columns of kLanes rows (`codes`) times the pairs of row m; pair j is at
// act + 2 * (j * stride + m) and holds columns j and j + 4.
template <int M>
SF_INLINE void fp4_dot(Vec* sum, Bits codes, const Act* act, int stride) {
  SF_UNROLL for (int j = 0; j < 4; ++j) {
    const Vec low = decode_e2m1(shift_right(codes, 4 * j));
    const Vec high = decode_e2m1(shift_right(codes, 4 * j + 16));
    SF_UNROLL for (int m = 0; m < M; ++m) {
      const Act* pair = act + 2 * (j * stride + m);
      sum[m] = fma(low, set1(pair[0]), sum[m]);
      sum[m] = fma(high, set1(pair[1]), sum[m]);
    }
  }
}

#include "levels/fp4-pairs-inl.h"

}  // namespace stepfuse::scalar
