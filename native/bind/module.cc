#include "bind/bind.h"

namespace stepfuse {

// Absent until step.cc exists.
__attribute__((weak)) void bind_step(nanobind::module_& m);

}  // namespace stepfuse

NB_MODULE(_native, m) {
  m.doc() = "stepfuse's native core: kernels per ISA level, the thread team, the decode step";
  stepfuse::bind_team(m);
  stepfuse::bind_ops(m);
  if (stepfuse::bind_step != nullptr) stepfuse::bind_step(m);
}
