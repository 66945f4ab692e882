// The part of the SIMD vocabulary that the compiler's own vector types can say, included by each
// level's simd.h after it has defined STEPFUSE_LEVEL_NS and STEPFUSE_LANES. What they cannot say
// (fused multiply-add, table look-ups, BF16 dot products) is in the level's simd.h.
//
// Everything in a level object is static: a shared inline function would be a weak symbol, and the
// linker could keep the copy of a level this processor cannot run.
#include "stepfuse/kernels.h"

#define SF_INLINE static inline __attribute__((always_inline))
// An inner loop on its own, so that its registers are its own.
#define SF_NOINLINE static __attribute__((noinline))
#define SF_UNROLL _Pragma("GCC unroll 16")
#define SF_ROLLED _Pragma("GCC unroll 1")

namespace stepfuse::STEPFUSE_LEVEL_NS {

static constexpr int kLanes = STEPFUSE_LANES;
// Vectors that cover the rows of a packed weight tile.
static constexpr int kTileVectors = kTileRows / kLanes;

typedef float Vec __attribute__((vector_size(4 * STEPFUSE_LANES)));
typedef std::int32_t Bits __attribute__((vector_size(4 * STEPFUSE_LANES)));
typedef std::uint32_t UBits __attribute__((vector_size(4 * STEPFUSE_LANES)));
typedef float Quad __attribute__((vector_size(16)));

// Unaligned views for memory access.
typedef float VecMem __attribute__((vector_size(4 * STEPFUSE_LANES), aligned(4), may_alias));
typedef std::int32_t BitsMem
    __attribute__((vector_size(4 * STEPFUSE_LANES), aligned(1), may_alias));
typedef std::uint16_t Words __attribute__((vector_size(2 * STEPFUSE_LANES)));
typedef std::uint16_t WordsMem
    __attribute__((vector_size(2 * STEPFUSE_LANES), aligned(2), may_alias));
typedef std::uint8_t Bytes __attribute__((vector_size(STEPFUSE_LANES)));
typedef std::uint8_t BytesMem __attribute__((vector_size(STEPFUSE_LANES), aligned(1), may_alias));
typedef float ScalarMem __attribute__((aligned(4), may_alias));

SF_INLINE Vec load(const float* p) { return *reinterpret_cast<const VecMem*>(p); }
SF_INLINE void store(float* p, Vec v) { *reinterpret_cast<VecMem*>(p) = v; }
SF_INLINE Bits load_bits(const void* p) { return *static_cast<const BitsMem*>(p); }
SF_INLINE Vec set1(float x) { return x - Vec{}; }
SF_INLINE Bits set1_bits(std::int32_t x) { return x - Bits{}; }
SF_INLINE Vec as_vec(Bits b) { return reinterpret_cast<Vec>(b); }
SF_INLINE Bits as_bits(Vec v) { return reinterpret_cast<Bits>(v); }
SF_INLINE Bits shift_right(Bits b, int count) {  // logical
  return reinterpret_cast<Bits>(reinterpret_cast<UBits>(b) >> count);
}
SF_INLINE int min_int(int a, int b) { return a < b ? a : b; }

// Where either operand is NaN the second is returned.
SF_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
SF_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
SF_INLINE Bits max_bits(Bits a, Bits b) { return a > b ? a : b; }
SF_INLINE Vec abs(Vec v) { return as_vec(as_bits(v) & 0x7fffffff); }

// The first `count` < kLanes floats, zeros behind.
SF_INLINE Vec load_some(const float* p, int count) {
  float lanes[kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return load(lanes);
}
SF_INLINE void store_some(float* p, Vec v, int count) {
  float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

// BF16 and FP32.
SF_INLINE Vec widen_words(Words w) {
  return as_vec(reinterpret_cast<Bits>(__builtin_convertvector(w, UBits)) << 16);
}
SF_INLINE Vec load_bf16(const bf16_t* p) {
  return widen_words(*reinterpret_cast<const WordsMem*>(p));
}
SF_INLINE Vec load_bf16_some(const bf16_t* p, int count) {
  bf16_t lanes[kLanes] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return load_bf16(lanes);
}
// The even and odd BF16 words of a vector of pairs, as FP32.
SF_INLINE Vec even_words(Bits pairs) { return as_vec(pairs << 16); }
SF_INLINE Vec odd_words(Bits pairs) {
  return as_vec(pairs & static_cast<std::int32_t>(0xffff0000u));
}
// Rounds to nearest even; the FP32 bits of the result. A NaN stays a (quiet) NaN.
SF_INLINE Bits round_bf16(Vec v) {
  const Bits b = as_bits(v);
  const Bits up = (b + 0x7fff + (shift_right(b, 16) & 1)) & static_cast<std::int32_t>(0xffff0000u);
  return v == v ? up : ((b & static_cast<std::int32_t>(0xffff0000u)) | 0x00400000);
}
SF_INLINE void store_bf16(bf16_t* p, Vec v) {
  const UBits high = reinterpret_cast<UBits>(round_bf16(v)) >> 16;
  *reinterpret_cast<WordsMem*>(p) = __builtin_convertvector(high, Words);
}
SF_INLINE std::int32_t float_bits(float x) { return __builtin_bit_cast(std::int32_t, x); }
SF_INLINE float bits_float(std::int32_t b) { return __builtin_bit_cast(float, b); }
SF_INLINE float round_bf16_one(float x) {
  const std::int32_t b = float_bits(x);
  const std::int32_t high = static_cast<std::int32_t>(0xffff0000u);
  if (x != x) return bits_float((b & high) | 0x00400000);
  const std::uint32_t even = (static_cast<std::uint32_t>(b) >> 16) & 1u;
  return bits_float(static_cast<std::int32_t>(static_cast<std::uint32_t>(b) + 0x7fffu + even) &
                    high);
}
SF_INLINE bf16_t to_bf16(float x) {
  return static_cast<bf16_t>(static_cast<std::uint32_t>(float_bits(round_bf16_one(x))) >> 16);
}
SF_INLINE float from_bf16(bf16_t x) {
  return bits_float(static_cast<std::int32_t>(static_cast<std::uint32_t>(x) << 16));
}

// Bytes.
SF_INLINE Bits load_bytes(const std::uint8_t* p);  // the level's
// E8M0 scale bytes as 2^(s-127); byte 0 is the denormal 2^-127 (255 is refused at load).
SF_INLINE Vec load_e8m0(const std::uint8_t* p) {
  return as_vec(max_bits(load_bytes(p) << 23, set1_bits(0x00400000)));
}
// e4m3fn bytes, exact. No denormal FP32 is touched on the way, so flush-to-zero modes are harmless.
SF_INLINE Vec load_e4m3(const std::uint8_t* p) {
  const Bits b = load_bytes(p);
  const Bits magnitude = b & 0x7f;
  const Vec normal = as_vec((magnitude << 20) + (120 << 23));
  // Exponent field 0: `normal` reads 2^-7 (1 + m/8) where the value is 2^-6 m/8.
  const Vec value = magnitude < 8 ? (normal - 0.0078125f) * 2.0f : normal;
  const Bits nan = (magnitude == 0x7f) & 0x7fc00000;
  return as_vec(as_bits(value) | nan | ((b & 0x80) << 24));
}

SF_INLINE float reduce_quad(Quad q) {
  q += __builtin_shufflevector(q, q, 2, 3, 0, 1);
  return q[0] + q[1];
}
SF_INLINE float reduce_max(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i) best = lanes[i] > best || lanes[i] != lanes[i] ? lanes[i] : best;
  return best;
}

SF_INLINE std::int32_t reduce_max_bits(Bits b) {
  std::int32_t best = b[0];
  SF_UNROLL for (int i = 1; i < kLanes; ++i) best = b[i] > best ? b[i] : best;
  return best;
}
SF_INLINE std::int32_t reduce_add_bits(Bits b) {
  std::int32_t sum = 0;
  SF_UNROLL for (int i = 0; i < kLanes; ++i) sum += b[i];
  return sum;
}

SF_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// What the level's fp4_group reads.
// Nibbles of one group from some lane on, [octet][kTileRows][4], and what to prefetch beside them.
struct Fp4Weights {
  const std::uint8_t* nibbles;
  const std::uint8_t* ahead;
};
// A block of `stride` rows at that group, from `row` on.
struct Fp4Rows {
  const std::uint8_t* act;
  int stride, row;
};
// The lines beside one octet of V weight vectors.
template <int V>
SF_INLINE void prefetch_octet(const Fp4Weights& weights, int octet) {
  for (int byte = 0; byte < V * 4 * kLanes; byte += 64) {
    prefetch(weights.ahead + octet * 4 * kTileRows + byte);
  }
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
