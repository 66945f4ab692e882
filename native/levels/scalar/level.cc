#include "levels/scalar/simd.h"

#include "kernels/table-inl.h"

namespace stepfuse {

const KernelTable* scalar_table() { return &scalar::kTable; }

}  // namespace stepfuse
