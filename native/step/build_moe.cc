// A layer's experts: router and shared inputs, routed products, sum, latent up-projection.
#include "step/builder.h"

namespace stepfuse {

void Builder::declare_moe() {
  const std::int64_t rows = g_.max_rows;
  const std::int64_t pairs = rows * g_.top_k;
  const int in = g_.latent > 0 ? g_.latent : g_.hidden;
  moe_.logits = add("moe.logits", Sharing::kShared, {rows, g_.experts});
  if (g_.latent > 0) {
    moe_.latent = add("moe.latent", Sharing::kShared, {rows, g_.latent});
    moe_.sum = add("moe.sum", Sharing::kShared, {rows, g_.latent});
    moe_.latent_x = add("moe.latent_x", Sharing::kPrivate, {rows, g_.latent});
    moe_.latent_act = add_act("moe.latent_act", Sharing::kPrivate, g_.latent, rows);
  }
  if (g_.shared_width > 0) {
    moe_.shared_h = add("moe.shared_h", Sharing::kShared, {rows, g_.shared_width});
    moe_.shared_act = add_act("moe.shared_act", Sharing::kShared, g_.shared_width, rows);
  }
  moe_.table = arena_->add("moe.table", Sharing::kPrivate, Element::kByte,
                           {expert_table_bytes(g_.experts, g_.top_k, g_.max_rows)});
  moe_.row_act =
      add_act("moe.row_act", g_.latent > 0 ? Sharing::kShared : Sharing::kPrivate, in, rows);
  moe_.gather_act = add_act("moe.gather_act", Sharing::kPrivate, in, rows);
  moe_.h = add("moe.h", Sharing::kShared, {pairs, g_.expert_width});
  moe_.h_act = add_act("moe.h_act", Sharing::kShared, g_.expert_width, pairs);
}

ExpertsSpec Builder::experts_spec(const MoeWeights& weights) const {
  const bool latent = g_.latent > 0;
  ExpertsSpec spec{};
  spec.weights = weights;
  spec.experts = g_.experts;
  spec.top_k = g_.top_k;
  spec.width = g_.expert_width;
  spec.in = latent ? g_.latent : g_.hidden;
  spec.max_rows = g_.max_rows;
  spec.scaling = g_.routed_scaling;
  spec.renormalize = g_.renormalize;
  spec.format = g_.expert_format;
  spec.activation = g_.activation;
  spec.logits = at(moe_.logits);
  spec.table = at(moe_.table);
  spec.row_act = at(moe_.row_act);
  spec.gather_act = at(moe_.gather_act);
  spec.h = at(moe_.h);
  spec.h_act = at(moe_.h_act);
  spec.out = at(latent ? moe_.sum : residual_[prefix_]);
  spec.clear = latent;
  spec.hidden = g_.hidden;
  spec.shared_width = g_.shared_width;
  spec.shared_act = at(moe_.shared_act);
  spec.prefix = at(residual_[prefix_]);
  return spec;
}

void Builder::moe_front(const MoeWeights& w) {
  std::vector<Matrix> matrices{
      {Product::kLinearFp32, w.router, g_.hidden, g_.experts, at(x_act32_), at(moe_.logits)}};
  std::vector<Region> written{moe_.logits};
  if (g_.latent > 0) {
    matrices.push_back({Product::kLinear, w.latent_down, g_.hidden, g_.latent, at(x_act_),
                        at(moe_.latent), at(moe_.row_act), g_.expert_format, true});
    written.insert(written.end(), {moe_.latent, moe_.row_act});
  }
  if (g_.shared_width > 0) {
    matrices.push_back({Product::kGateUp, w.shared_gate_up, g_.hidden, g_.shared_width, at(x_act_),
                        at(moe_.shared_h), at(moe_.shared_act)});
    written.insert(written.end(), {moe_.shared_h, moe_.shared_act});
  }
  products({"moe.front",
            std::move(matrices),
            {{x_act_, Use::kWhole}, {x_act32_, Use::kWhole}},
            std::move(written)});
}

void Builder::moe_latent_up(const MoeWeights& weights) {
  NormSpec norm{};
  norm.n = g_.latent;
  norm.ld = g_.latent;
  norm.eps = g_.norm_eps;
  norm.norm = weights.latent_norm;
  norm.sources = {at(moe_.sum)};
  norm.x = at(moe_.latent_x);
  norm.act = at(moe_.latent_act);
  stage({"moe.norm",
         {{moe_.sum, Use::kWhole}},
         {{moe_.latent_x, Use::kWhole}, {moe_.latent_act, Use::kWhole}},
         {},
         false},
        std::make_unique<NormTask>(std::move(norm)));
  residual_stage("moe.latent_up", weights.latent_up, g_.latent, moe_.latent_act, false);
}

void Builder::build_moe(const MoeWeights& weights) {
  moe_front(weights);
  const ExpertsSpec spec = experts_spec(weights);
  const Region sum = g_.latent > 0 ? moe_.sum : residual_[prefix_];
  stage({"moe.route", {{moe_.logits, Use::kWhole}}, {{moe_.table, Use::kWhole}}, {}, false},
        std::make_unique<RouteTask>(spec));
  const int by_unit = program_->new_share();
  const int up_tail = program_->new_tail();
  stage({"moe.up",
         {{moe_.table, Use::kWhole}, {moe_.row_act, Use::kWhole}},
         {{moe_.gather_act, Use::kWhole}, {moe_.h, by_unit}, {moe_.h_act, by_unit}},
         {},
         true,
         up_tail},
        std::make_unique<ExpertsUpTask>(kernels_, spec, up_tail));
  const int by_column = program_->new_share();
  const int down_tail = program_->new_tail();
  std::vector<Use> reads{{moe_.table, Use::kWhole}, {moe_.h_act, Use::kWhole}};
  std::vector<Use> writes{{sum, by_column}};
  if (g_.shared_width > 0) {
    reads.push_back({moe_.shared_act, Use::kWhole});
    if (g_.latent > 0) writes.push_back({residual_[prefix_], by_column});
  }
  if (g_.latent == 0 || g_.shared_width > 0) reads.push_back({residual_[prefix_], by_column});
  stage({"moe.down", std::move(reads), std::move(writes), {}, true, down_tail},
        std::make_unique<ExpertsDownTask>(kernels_, spec, down_tail));
  if (g_.latent > 0) moe_latent_up(weights);
}

}  // namespace stepfuse
