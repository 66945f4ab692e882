#include "levels/avx512_bf16/simd.h"

#include "kernels/table-inl.h"

namespace stepfuse {

const KernelTable* avx512_bf16_table() { return &avx512_bf16::kTable; }

}  // namespace stepfuse
