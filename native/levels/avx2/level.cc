#include "levels/avx2/simd.h"

#include "kernels/table-inl.h"

namespace stepfuse {

const KernelTable* avx2_table() { return &avx2::kTable; }

}  // namespace stepfuse
