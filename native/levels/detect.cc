#include "stepfuse/level.h"

#ifdef STEPFUSE_X86
#include <cpuid.h>
#endif

namespace stepfuse {
namespace {

#ifdef STEPFUSE_X86

struct Features {
  bool avx2, avx512, avx512_bf16;
};

bool bit(unsigned word, int index) { return ((word >> index) & 1u) != 0; }

// XCR0: the register state the operating system saves.
unsigned saved_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Features read_features() {
  Features features{};
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  const bool os_saves = bit(c, 27), fma = bit(c, 12), f16c = bit(c, 29);
  if (!os_saves) return features;
  const unsigned saved = saved_state();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  const unsigned kYmm = 0x6, kZmm = 0xe6;
  features.avx2 = (saved & kYmm) == kYmm && fma && f16c && bit(b, 5) && bit(b, 8);
  const bool wide = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  features.avx512 = features.avx2 && (saved & kZmm) == kZmm && wide;
  const bool byte_products = bit(c, 11);
  const bool has_leaf1 = a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d);
  features.avx512_bf16 = features.avx512 && byte_products && has_leaf1 && bit(a, 5);
  return features;
}

#endif

}  // namespace

bool level_supported(Level level) {
  if (level == Level::kScalar) return true;
#ifdef STEPFUSE_EMULATE
  if (level != Level::kAvx2) return level_supported(Level::kAvx2);
#endif
#ifdef STEPFUSE_X86
  static const Features features = read_features();
  switch (level) {
    case Level::kAvx2:
      return features.avx2;
    case Level::kAvx512:
      return features.avx512;
    case Level::kAvx512Bf16:
      return features.avx512_bf16;
    default:
      return false;
  }
#else
  return false;
#endif
}

}  // namespace stepfuse
