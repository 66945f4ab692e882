// An MLA layer's attention: norm, projections, [queries, cache writes], attention, output product.
#include "step/builder.h"

namespace stepfuse {

void Builder::declare_mla() {
  const std::int64_t rows = g_.max_rows;
  const std::int64_t heads = g_.mla_heads;
  const std::int64_t head_q = g_.nope + g_.rope;
  const std::int64_t width = heads * g_.v_dim;
  if (g_.q_lora > 0) {
    mla_.q_a = add("mla.q_a", Sharing::kShared, {rows, g_.q_lora});
    mla_.q_norm = add("mla.q_norm", Sharing::kPrivate, {rows, g_.q_lora});
    mla_.q_act = add_act("mla.q_act", Sharing::kPrivate, g_.q_lora, rows);
  }
  mla_.kv_a = add("mla.kv_a", Sharing::kShared, {rows, g_.kv_lora + g_.rope});
  if (g_.mla_output_gate) mla_.gate = add("mla.gate", Sharing::kShared, {rows, width});
  mla_.q = add("mla.q", Sharing::kPrivate, {rows, heads * head_q});
  mla_.head_act = add_act("mla.head_act", Sharing::kPrivate, std::max(g_.nope, g_.kv_lora), rows);
  mla_.q_latent = add("mla.q_latent", Sharing::kShared, {rows, heads, g_.kv_lora});
  mla_.kv_norm = add("mla.kv_norm", Sharing::kPrivate, {g_.kv_lora});
  mla_.part_max = add("mla.part_max", Sharing::kShared, {kMlaParts, heads});
  mla_.part_sum = add("mla.part_sum", Sharing::kShared, {kMlaParts, heads});
  mla_.part_acc = add("mla.part_acc", Sharing::kShared, {kMlaParts, heads, g_.kv_lora});
  mla_.latent = add("mla.latent", Sharing::kShared, {rows, heads, g_.kv_lora});
  mla_.out = add("mla.out", Sharing::kShared, {rows, width});
  mla_.out_act = add_act("mla.out_act", Sharing::kShared, width, rows);
  latent_cache_ = add("cache.latent", Sharing::kExternal, {});
}

void Builder::mla_project(const MlaWeights& w) {
  const auto linear = [&](const bf16_t* weight, int out, Region y) {
    return Matrix{Product::kLinear, weight, g_.hidden, out, at(x_act_), at(y)};
  };
  std::vector<Matrix> matrices{linear(w.kv_a, g_.kv_lora + g_.rope, mla_.kv_a)};
  std::vector<Region> written{mla_.kv_a};
  if (g_.q_lora > 0) {
    matrices.push_back(linear(w.q_a, g_.q_lora, mla_.q_a));
    written.push_back(mla_.q_a);
  }
  if (g_.mla_output_gate) {
    matrices.push_back(linear(w.g, g_.mla_heads * g_.v_dim, mla_.gate));
    written.push_back(mla_.gate);
  }
  products({"mla.project", std::move(matrices), {{x_act_, Use::kWhole}}, std::move(written)});
}

MlaSpec Builder::mla_spec(const MlaWeights& weights) const {
  MlaSpec spec{};
  spec.weights = weights;
  spec.heads = g_.mla_heads;
  spec.q_in = g_.q_lora > 0 ? g_.q_lora : g_.hidden;
  spec.kv_lora = g_.kv_lora;
  spec.nope = g_.nope;
  spec.rope = g_.rope;
  spec.v_dim = g_.v_dim;
  spec.output_gate = g_.mla_output_gate;
  spec.index = mla_index_;
  spec.split = mla_split_;
  spec.q_act = at(g_.q_lora > 0 ? mla_.q_act : x_act_);
  spec.q = at(mla_.q);
  spec.head_act = at(mla_.head_act);
  spec.q_latent = at(mla_.q_latent);
  spec.kv_a = at(mla_.kv_a);
  spec.kv_norm = at(mla_.kv_norm);
  spec.part_max = at(mla_.part_max);
  spec.part_sum = at(mla_.part_sum);
  spec.part_acc = at(mla_.part_acc);
  spec.latent = at(mla_.latent);
  spec.gate = at(mla_.gate);
  spec.out = at(mla_.out);
  spec.out_act = at(mla_.out_act);
  return spec;
}

void Builder::build_mla(const MlaWeights& weights, bool start) {
  mla_project(weights);
  if (g_.q_lora > 0) {
    NormSpec norm{};
    norm.n = g_.q_lora;
    norm.ld = g_.q_lora;
    norm.eps = kMlaNormEps;
    norm.norm = weights.q_a_norm;
    norm.sources = {at(mla_.q_a)};
    norm.x = at(mla_.q_norm);
    norm.act = at(mla_.q_act);
    stage({"mla.q_norm",
           {{mla_.q_a, Use::kWhole}},
           {{mla_.q_norm, Use::kWhole}, {mla_.q_act, Use::kWhole}},
           {},
           false},
          std::make_unique<NormTask>(std::move(norm)));
  }
  const MlaSpec spec = mla_spec(weights);
  const int own = mla_share_;
  stage({"mla.query",
         {{g_.q_lora > 0 ? mla_.q_act : x_act_, Use::kWhole}},
         {{mla_.q, own}, {mla_.head_act, Use::kWhole}, {mla_.q_latent, own}},
         {mla_split_},
         false},
        std::make_unique<MlaQueryTask>(spec));
  // All latents of the step are in the cache before any row attends.
  const int by_row = program_->new_share();
  stage({"mla.write",
         {{mla_.kv_a, Use::kWhole}},
         {{latent_cache_, by_row}, {mla_.kv_norm, Use::kWhole}},
         {},
         true},
        std::make_unique<MlaWriteTask>(spec));
  std::vector<Use> reads{{mla_.q, own}, {mla_.q_latent, own}, {latent_cache_, Use::kWhole}};
  if (g_.mla_output_gate) reads.push_back({mla_.gate, own});
  std::vector<Use> writes{{mla_.head_act, Use::kWhole}};
  for (Region region :
       {mla_.part_max, mla_.part_sum, mla_.part_acc, mla_.latent, mla_.out, mla_.out_act}) {
    writes.push_back({region, own});
  }
  stage({"mla.attend", std::move(reads), std::move(writes), {mla_split_}, true},
        std::make_unique<MlaAttendTask>(kernels_, spec));
  residual_stage("mla.o", weights.o, g_.mla_heads * g_.v_dim, mla_.out_act, start);
}

}  // namespace stepfuse
