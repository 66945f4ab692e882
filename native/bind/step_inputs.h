// Reads what a step is prepared from out of plain Python dicts.
#pragma once

#include <nanobind/nanobind.h>

#include "step/decode_step.h"

namespace stepfuse {

// `geometry`: one entry per field of Geometry (`activation` as activation_kind, activation_beta,
// activation_linear_beta), and `mla` and `dense`, lists of one bool per layer. `weights`: addresses
// by "embed", "final_norm", ..., "layers.N.kda.q", ... (the structs' field names). Throws
// ValueError naming an entry that is missing, null or not 64-byte aligned.
StepInputs read_step_inputs(const nanobind::dict& geometry, const nanobind::dict& weights);

}  // namespace stepfuse
