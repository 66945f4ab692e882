// All kernels of one level, and its table. Included once, after the level's simd.h.
#pragma once

#include "kernels/math-inl.h"
#include "kernels/pack-inl.h"

#include "kernels/linear-inl.h"

#include "kernels/fp4-inl.h"
#include "kernels/products-inl.h"
#include "kernels/rows-inl.h"

#include "kernels/kda-inl.h"
#include "kernels/latent-inl.h"
#include "kernels/router-inl.h"

#include "kernels/mla-inl.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

static constexpr KernelTable kTable = {
    .level = kLevel,
    .name = kName,
    .act_bytes = act_bytes,
    .pair_bytes = static_cast<int>(sizeof(Pair)),
    .fp4_row_bytes = kFp4RowBytes,
    .pack_pairs = pack_pairs,
    .pack_pairs_fp32 = pack_pairs_fp32,
    .pack_fp4 = pack_fp4,
    .gather_pairs = gather_pairs,
    .gather_fp4 = gather_fp4,
    .linear = linear,
    .linear_fp32 = linear_fp32,
    .linear_scatter = linear_scatter,
    .gate_up = gate_up,
    .fp4_linear = fp4_linear,
    .fp4_scatter = fp4_scatter,
    .fp4_gate_up = fp4_gate_up,
    .rms_norm = rms_norm,
    .attn_res = attn_res,
    .add = add,
    .sigmoid_gate = sigmoid_gate,
    .widen = widen,
    .kda = kda,
    .mla = mla,
    .mla_merge = mla_merge,
    .latent_write = latent_write,
    .router_select = router_select,
    .argmax = argmax,
};

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
