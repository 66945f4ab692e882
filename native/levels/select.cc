#include "stepfuse/level.h"

namespace stepfuse {

#ifndef STEPFUSE_X86
const KernelTable* avx2_table() { return nullptr; }
const KernelTable* avx512_table() { return nullptr; }
const KernelTable* avx512_bf16_table() { return nullptr; }
#endif

namespace {

const KernelTable* compiled_table(Level level) {
  switch (level) {
    case Level::kScalar:
      return scalar_table();
    case Level::kAvx2:
      return avx2_table();
    case Level::kAvx512:
      return avx512_table();
    case Level::kAvx512Bf16:
      return avx512_bf16_table();
  }
  return nullptr;
}

}  // namespace

const KernelTable* level_table(Level level) {
  return level_supported(level) ? compiled_table(level) : nullptr;
}

Level level_best() {
  const Level best_first[] = {Level::kAvx512Bf16, Level::kAvx512, Level::kAvx2};
  for (const Level level : best_first) {
    if (level_table(level) != nullptr) return level;
  }
  return Level::kScalar;
}

const char* level_name(Level level) {
  switch (level) {
    case Level::kScalar:
      return "scalar";
    case Level::kAvx2:
      return "avx2";
    case Level::kAvx512:
      return "avx512";
    case Level::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "?";
}

}  // namespace stepfuse
