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
