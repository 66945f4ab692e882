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

typedef std::uint8_t EmulatedWideBytes __attribute__((vector_size(64), may_alias));
typedef std::int32_t EmulatedFourInts __attribute__((vector_size(16), may_alias));

STEPFUSE_EMULATED void _mm_storeu_si128(__m128i* p, __m128i v) {
  __builtin_memcpy(p, &v, sizeof(v));
}
STEPFUSE_EMULATED __m128i _mm_set_epi8(char p, char o, char n, char m, char l, char k, char j,
                                       char i, char h, char g, char f, char e, char d, char c,
                                       char b, char a) {
  const char bytes[16] = {a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}
// A set top bit gives zero; four index bits count.
STEPFUSE_EMULATED __m128i _mm_shuffle_epi8(__m128i from, __m128i order) {
  const EmulatedBytes bytes = reinterpret_cast<EmulatedBytes>(from);
  const EmulatedBytes at = reinterpret_cast<EmulatedBytes>(order);
  EmulatedBytes r;
  for (int i = 0; i < 16; ++i) r[i] = at[i] & 0x80 ? std::uint8_t{0} : bytes[at[i] & 15];
  return reinterpret_cast<__m128i>(r);
}
STEPFUSE_EMULATED __m128i _mm_unpacklo_epi32(__m128i a, __m128i b) {
  return reinterpret_cast<__m128i>(__builtin_shufflevector(
      reinterpret_cast<EmulatedFourInts>(a), reinterpret_cast<EmulatedFourInts>(b), 0, 4, 1, 5));
}
STEPFUSE_EMULATED __m128i _mm_unpackhi_epi32(__m128i a, __m128i b) {
  return reinterpret_cast<__m128i>(__builtin_shufflevector(
      reinterpret_cast<EmulatedFourInts>(a), reinterpret_cast<EmulatedFourInts>(b), 2, 6, 3, 7));
}
STEPFUSE_EMULATED __m128i _mm512_cvtepi32_epi8(__m512i v) {
  const EmulatedInts from = reinterpret_cast<EmulatedInts>(v);
  EmulatedBytes r;
  for (int i = 0; i < 16; ++i) r[i] = static_cast<std::uint8_t>(from[i]);
  return reinterpret_cast<__m128i>(r);
}
STEPFUSE_EMULATED __m512i _mm512_set1_epi8(char x) {
  EmulatedWideBytes r;
  for (int i = 0; i < 64; ++i) r[i] = static_cast<std::uint8_t>(x);
  return reinterpret_cast<__m512i>(r);
}
STEPFUSE_EMULATED __m512i _mm512_set1_epi32(int x) {
  EmulatedInts r;
  for (int i = 0; i < 16; ++i) r[i] = x;
  return reinterpret_cast<__m512i>(r);
}
STEPFUSE_EMULATED __m512i _mm512_srli_epi16(__m512i v, unsigned count) {
  return reinterpret_cast<__m512i>(reinterpret_cast<EmulatedWords>(v) >> count);
}
STEPFUSE_EMULATED __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
// Sixteen-byte quarters look up their own quarter of the table.
STEPFUSE_EMULATED __m512i _mm512_shuffle_epi8(__m512i table, __m512i order) {
  const EmulatedWideBytes bytes = reinterpret_cast<EmulatedWideBytes>(table);
  const EmulatedWideBytes at = reinterpret_cast<EmulatedWideBytes>(order);
  EmulatedWideBytes r;
  for (int i = 0; i < 64; ++i) {
    r[i] = at[i] & 0x80 ? std::uint8_t{0} : bytes[i / 16 * 16 + (at[i] & 15)];
  }
  return reinterpret_cast<__m512i>(r);
}
// Unsigned bytes of `a` times signed bytes of `b`, four products into each sum, wrapping.
STEPFUSE_EMULATED __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i a, __m512i b) {
  EmulatedInts r = reinterpret_cast<EmulatedInts>(sums);
  const EmulatedWideBytes left = reinterpret_cast<EmulatedWideBytes>(a);
  const EmulatedWideBytes right = reinterpret_cast<EmulatedWideBytes>(b);
  for (int i = 0; i < 64; ++i) r[i / 4] += left[i] * static_cast<std::int8_t>(right[i]);
  return reinterpret_cast<__m512i>(r);
}
