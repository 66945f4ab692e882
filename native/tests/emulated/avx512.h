// The AVX-512 intrinsics that levels/avx512 and levels/avx512_bf16 use, lane by lane in portable
// code, so that both levels can be tested on a processor without AVX-512 (STEPFUSE_EMULATE_AVX512).
#pragma once

#include <cstdint>

#define STEPFUSE_EMULATED static inline __attribute__((always_inline))

typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef long long __m512i __attribute__((vector_size(64), may_alias));
typedef std::uint16_t __m512bh __attribute__((vector_size(64), may_alias));
typedef std::uint16_t EmulatedWords __attribute__((vector_size(64), may_alias));

typedef long long __m128i __attribute__((vector_size(16), may_alias));
typedef std::uint8_t EmulatedBytes __attribute__((vector_size(16), may_alias));
typedef std::int32_t EmulatedInts __attribute__((vector_size(64), may_alias));

STEPFUSE_EMULATED __m128i _mm_loadu_si128(const __m128i* p) {
  __m128i r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}

STEPFUSE_EMULATED __m512i _mm512_cvtepu8_epi32(__m128i bytes) {
  const EmulatedBytes from = reinterpret_cast<EmulatedBytes>(bytes);
  EmulatedInts r;
  for (int i = 0; i < 16; ++i) r[i] = from[i];
  return reinterpret_cast<__m512i>(r);
}

STEPFUSE_EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  __m512 r;
  for (int i = 0; i < 16; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
}

STEPFUSE_EMULATED __m512i _mm512_set4_epi64(long long d, long long c, long long b, long long a) {
  return __m512i{a, b, c, d, a, b, c, d};
}

// Five index bits of each word count.
STEPFUSE_EMULATED __m512i _mm512_permutexvar_epi16(__m512i index, __m512i table) {
  const EmulatedWords at = reinterpret_cast<EmulatedWords>(index);
  const EmulatedWords from = reinterpret_cast<EmulatedWords>(table);
  EmulatedWords r;
  for (int i = 0; i < 32; ++i) r[i] = from[at[i] & 31];
  return reinterpret_cast<__m512i>(r);
}

STEPFUSE_EMULATED float emulated_bf16(std::uint16_t word) {
  const float x = __builtin_bit_cast(float, static_cast<std::uint32_t>(word) << 16);
  return __builtin_fabsf(x) < 1.17549435e-38f ? 0.0f : x;  // denormal inputs count as zero
}

// Odd element first, then the even one, each with one rounding; denormal results are flushed.
STEPFUSE_EMULATED __m512 _mm512_dpbf16_ps(__m512 acc, __m512bh a, __m512bh b) {
  for (int i = 0; i < 16; ++i) {
    float sum = __builtin_fmaf(emulated_bf16(a[2 * i + 1]), emulated_bf16(b[2 * i + 1]), acc[i]);
    sum = __builtin_fmaf(emulated_bf16(a[2 * i]), emulated_bf16(b[2 * i]), sum);
    acc[i] = __builtin_fabsf(sum) < 1.17549435e-38f ? 0.0f : sum;
  }
  return acc;
}
