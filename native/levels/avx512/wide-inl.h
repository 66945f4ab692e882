// What both AVX-512 levels share; included inside the level's namespace.
SF_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
SF_INLINE float fma_one(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
SF_INLINE Bits load_bytes(const std::uint8_t* p) {
  return reinterpret_cast<Bits>(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
SF_INLINE float reduce_add(Vec v) {
  return reduce_quad(
      (__builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 8, 9, 10, 11)) +
      (__builtin_shufflevector(v, v, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 12, 13, 14, 15)));
}

// The BF16 value of the E2M1 code in the low four bits of each 16-bit word. The look-up reads five
// bits, so the table stands there twice and the next nibble needs no mask.
SF_INLINE Bits e2m1_words(Bits codes) {
  const __m512i table = _mm512_set4_epi64(
      static_cast<long long>(0xc0c0c080c040c000ull), static_cast<long long>(0xbfc0bf80bf008000ull),
      static_cast<long long>(0x40c0408040404000ull), static_cast<long long>(0x3fc03f803f000000ull));
  return reinterpret_cast<Bits>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(codes), table));
}
