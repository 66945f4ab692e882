#include "levels/avx512/simd.h"

#include "kernels/table-inl.h"

namespace stepfuse {

const KernelTable* avx512_table() { return &avx512::kTable; }

}  // namespace stepfuse
