// A KDA layer's attention: norm, [projections, heads], output product.
#include "step/builder.h"

namespace stepfuse {

void Builder::declare_kda() {
  const std::int64_t rows = g_.max_rows;
  const std::int64_t width = std::int64_t{g_.kda_heads} * g_.kda_dim;
  // Members that project their own heads repeat beta and the low-rank inputs, each for itself.
  const Sharing low = fused_ ? Sharing::kPrivate : Sharing::kShared;
  kda_.q = add("kda.q", Sharing::kShared, {rows, width});
  kda_.k = add("kda.k", Sharing::kShared, {rows, width});
  kda_.v = add("kda.v", Sharing::kShared, {rows, width});
  kda_.gate = add("kda.gate", Sharing::kShared, {rows, width});
  kda_.decay = add("kda.decay", Sharing::kShared, {rows, width});
  kda_.beta = add("kda.beta", low, {rows, g_.kda_heads});
  kda_.f_a = add("kda.f_a", low, {rows, g_.decay_rank});
  if (g_.gate_rank > 0) kda_.g_a = add("kda.g_a", low, {rows, g_.gate_rank});
  kda_.f_act = add_act("kda.f_act", Sharing::kPrivate, g_.decay_rank, rows);
  if (g_.gate_rank > 0) kda_.g_act = add_act("kda.g_act", Sharing::kPrivate, g_.gate_rank, rows);
  kda_.out = add("kda.out", Sharing::kShared, {rows, width});
  kda_.out_act = add_act("kda.out_act", Sharing::kShared, width, rows);
  state_cache_ = add("cache.state", Sharing::kExternal, {});
}

void Builder::kda_project(const KdaWeights& w) {
  const int width = g_.kda_heads * g_.kda_dim;
  const auto linear = [&](const bf16_t* weight, int out, Region y) {
    return Matrix{Product::kLinear, weight, g_.hidden, out, at(x_act_), at(y)};
  };
  std::vector<Matrix> matrices{linear(w.q, width, kda_.q), linear(w.k, width, kda_.k),
                               linear(w.v, width, kda_.v)};
  std::vector<Region> written{kda_.q, kda_.k, kda_.v};
  if (g_.gate_rank == 0) {
    matrices.push_back(linear(w.g, width, kda_.gate));
    written.push_back(kda_.gate);
  }
  const std::size_t wide = matrices.size();
  matrices.push_back(linear(w.b, g_.kda_heads, kda_.beta));
  matrices.push_back(linear(w.f_a, g_.decay_rank, kda_.f_a));
  written.insert(written.end(), {kda_.beta, kda_.f_a});
  if (g_.gate_rank > 0) {
    matrices.push_back(linear(w.g_a, g_.gate_rank, kda_.g_a));
    written.push_back(kda_.g_a);
  }
  if (!fused_) {
    products({"kda.project", std::move(matrices), {{x_act_, Use::kWhole}}, std::move(written)});
    return;
  }
  std::vector<Split> splits;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    splits.push_back(i < wide ? split_scaled(kda_split_, g_.kda_dim / kTileRows)
                              : split_replicated(matrices[i].tiles(), options_.members));
  }
  std::vector<Use> writes;
  for (Region region : written) writes.push_back({region, kda_share_});
  stage({"kda.project", {{x_act_, Use::kWhole}}, std::move(writes), splits, false},
        std::make_unique<TilesTask>(kernels_, g_.activation, g_.max_rows, matrices, splits, -1));
}

KdaSpec Builder::kda_spec(const KdaWeights& weights) const {
  KdaSpec spec{};
  spec.weights = weights;
  spec.heads = g_.kda_heads;
  spec.dim = g_.kda_dim;
  spec.decay_rank = g_.decay_rank;
  spec.gate_rank = g_.gate_rank;
  spec.gate_lower_bound = g_.gate_lower_bound;
  spec.norm_eps = g_.norm_eps;
  spec.index = kda_index_;
  spec.split = kda_split_;
  spec.q = at(kda_.q);
  spec.k = at(kda_.k);
  spec.v = at(kda_.v);
  spec.decay = at(kda_.decay);
  spec.gate = at(kda_.gate);
  spec.beta = at(kda_.beta);
  spec.f_a = at(kda_.f_a);
  spec.g_a = at(kda_.g_a);
  spec.f_act = at(kda_.f_act);
  spec.g_act = at(kda_.g_act);
  spec.out = at(kda_.out);
  spec.out_act = at(kda_.out_act);
  return spec;
}

void Builder::build_kda(const KdaWeights& weights, bool start) {
  kda_project(weights);
  // Heads in a tail belong to nobody beforehand, so their projections stand behind a barrier.
  const int tail = fused_ ? -1 : program_->new_tail();
  const int own = fused_ ? kda_share_ : program_->new_share();
  // The low-rank inputs are read whole: private to each member, or behind a barrier.
  std::vector<Use> reads{{kda_.q, own},    {kda_.k, own},           {kda_.v, own},
                         {kda_.beta, own}, {kda_.f_a, Use::kWhole}, {state_cache_, own}};
  std::vector<Use> writes{{kda_.decay, own},
                          {kda_.f_act, Use::kWhole},
                          {kda_.out, own},
                          {kda_.out_act, own},
                          {state_cache_, own}};
  if (g_.gate_rank > 0) {
    reads.push_back({kda_.g_a, Use::kWhole});
    writes.push_back({kda_.gate, own});
    writes.push_back({kda_.g_act, Use::kWhole});
  } else {
    reads.push_back({kda_.gate, own});
  }
  stage({"kda.heads", std::move(reads), std::move(writes), {kda_split_}, true, tail},
        std::make_unique<KdaTask>(kernels_, kda_spec(weights), tail));
  residual_stage("kda.o", weights.o, g_.kda_heads * g_.kda_dim, kda_.out_act, start);
}

}  // namespace stepfuse
