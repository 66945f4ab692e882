#include "bind/bind.h"

NB_MODULE(_native, m) {
  m.doc() = "stepfuse's native core: kernels per ISA level, the thread team, the decode step";
  stepfuse::bind_team(m);
  stepfuse::bind_ops(m);
  stepfuse::bind_kernel_bench(m);
  stepfuse::bind_step(m);
}
