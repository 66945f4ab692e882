// The shape of one model and the addresses of its weights, as the step program is built from them.
// Filled by bind/ from Python's stepfuse.core.config.Geometry and stepfuse.weights.store; read by
// step/.
#pragma once

#include "stepfuse/types.h"

namespace stepfuse {

struct Geometry {
  int hidden, vocab, layers;
  int max_rows;        // rows the program is prepared for
  float norm_eps;      // rms_norm_eps
  int attn_res_block;  // 0: plain residuals
  Activation activation;
  // KDA
  int kda_heads, kda_dim, decay_rank, gate_rank;  // gate_rank 0: full-rank g
  float gate_lower_bound;                         // 0: softplus form
  // MLA
  int mla_heads, q_lora, kv_lora, nope, rope, v_dim;  // q_lora 0: direct q
  bool mla_output_gate;
  // FFN
  int dense_width;
  int experts, top_k, expert_width, shared_width;  // shared_width 0: no shared expert
  int latent;                                      // 0: experts work on the hidden width
  float routed_scaling;
  bool renormalize;
  ExpertFormat expert_format;
};

// Packed as kernels.h says; null where the member has no such tensor.
struct KdaWeights {
  const bf16_t *q, *k, *v, *f_a, *f_b, *b, *g, *g_a, *g_b, *o;
  const float *conv;  // [3][4][heads * dim]
  const float *a_log, *dt_bias, *o_norm;
};

struct MlaWeights {
  const bf16_t *q_a, *q_a_norm, *q_b;  // q_lora 0: q_b holds q_proj
  const bf16_t *kv_a, *kv_a_norm;
  const bf16_t *w_uk;  // per head a packed [kv_lora, nope] matrix (W_UK transposed)
  const bf16_t *w_uv;  // per head a packed [v_dim, kv_lora] matrix
  const bf16_t *g, *o;
};

struct DenseWeights {
  const bf16_t *gate_up, *down;
};

// Expert e is one block at experts + e * expert_bytes. MXFP4: w13 nibbles, w13 scales, w2 nibbles,
// w2 scales; BF16: w13, w2. Each part starts at its offset, a multiple of 64.
struct MoeWeights {
  const bf16_t *router;
  const float *bias;
  const bf16_t *latent_down, *latent_norm, *latent_up;
  const bf16_t *shared_gate_up, *shared_down;
  const std::uint8_t *experts;
  std::int64_t expert_bytes;
  std::int64_t w13_offset, w13_scale_offset, w2_offset, w2_scale_offset;
};

struct LayerWeights {
  bool is_mla, is_dense;
  const bf16_t *input_norm, *post_norm;
  const bf16_t *attn_res_norm, *attn_res_proj, *mlp_res_norm, *mlp_res_proj;
  KdaWeights kda;
  MlaWeights mla;
  DenseWeights dense;
  MoeWeights moe;
};

struct ModelWeights {
  const bf16_t *embed;  // [vocab, hidden] row-major
  const bf16_t *final_norm, *lm_head;
  const bf16_t *output_res_norm, *output_res_proj;
  const LayerWeights *layer;  // [layers]
};

}  // namespace stepfuse
