// The parts of the Python module, each bound in its own file.
#pragma once

#include <nanobind/nanobind.h>

namespace stepfuse {

void bind_team(nanobind::module_& m);          // team.cc
void bind_step(nanobind::module_& m);          // step.cc
void bind_ops(nanobind::module_& m);           // ops.cc
void bind_kernel_bench(nanobind::module_& m);  // kernel_bench.cc

}  // namespace stepfuse
