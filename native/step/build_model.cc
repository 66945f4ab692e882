// The frame of the step: residual stream, layers in order, head.
#include <stdexcept>

#include "step/builder.h"

namespace stepfuse {
namespace {

constexpr int kSnapshotsMax = 250;

}  // namespace

Builder::Builder(const Geometry& geometry, const ModelWeights& weights, const KernelTable* kernels,
                 BuildOptions options, Arena* arena, Program* program)
    : g_(geometry),
      w_(weights),
      kernels_(kernels),
      options_(options),
      arena_(arena),
      program_(program) {
  for (int i = 0; i < g_.layers; ++i) {
    (w_.layer[i].is_mla ? any_mla_ : any_kda_) = true;
    (w_.layer[i].is_dense ? any_dense_ : any_moe_) = true;
  }
  fused_ = options_.fuse_heads;
  kda_share_ = program_->new_share();
  mla_share_ = program_->new_share();
  kda_split_ = split_even(g_.kda_heads, options_.members);
  mla_split_ = split_even(g_.mla_heads, options_.members);
}

Region Builder::add(const char* name, Sharing sharing, std::vector<std::int64_t> shape) {
  return arena_->add(name, sharing, Element::kFp32, std::move(shape));
}

Region Builder::add_act(const char* name, Sharing sharing, std::int64_t k, std::int64_t rows) {
  const auto bytes = static_cast<std::int64_t>(Acts(kernels_).bytes(k, rows));
  return arena_->add(name, sharing, Element::kByte, {bytes});
}

void Builder::stage(StageText text, std::unique_ptr<Task> task) {
  const std::string prefix = layer_ < 0 ? "" : "L" + std::to_string(layer_) + ".";
  program_->add({prefix + text.name, layer_, std::move(text.reads), std::move(text.writes),
                 std::move(text.splits), text.barrier, text.tail, std::move(task)});
}

void Builder::products(Products p) {
  const int share = program_->new_share();
  std::vector<Use> writes;
  for (Region region : p.writes) writes.push_back({region, share});
  for (Region region : p.adds) {
    p.reads.push_back({region, share});
    writes.push_back({region, share});
  }
  const std::vector<Split> splits = split_tiles(p.matrices, options_.members);
  const int tail = program_->new_tail();
  stage({p.name, std::move(p.reads), std::move(writes), splits, p.barrier, tail},
        std::make_unique<TilesTask>(kernels_, g_.activation, g_.max_rows, std::move(p.matrices),
                                    splits, tail));
}

void Builder::declare() {
  const std::int64_t rows = g_.max_rows;
  const int block = g_.attn_res_block;
  const int snapshots = block == 0 ? 0 : (g_.layers + block - 1) / block;
  if (snapshots > kSnapshotsMax) throw std::logic_error("too many attention residual blocks");
  for (int i = 0; i <= snapshots; ++i) {
    residual_.push_back(
        add(("residual." + std::to_string(i)).c_str(), Sharing::kShared, {rows, g_.hidden}));
  }
  x_ = add("x", Sharing::kPrivate, {rows, g_.hidden});
  x_act_ = add_act("x.act", Sharing::kPrivate, g_.hidden, rows);
  if (any_moe_) x_act32_ = add("x.act32", Sharing::kPrivate, {rows, g_.hidden});
  if (block > 0) mixed_ = add("x.mixed", Sharing::kPrivate, {g_.hidden});
  if (any_kda_) declare_kda();
  if (any_mla_) declare_mla();
  if (any_dense_) {
    dense_h_ = add("dense.h", Sharing::kShared, {rows, g_.dense_width});
    dense_act_ = add_act("dense.act", Sharing::kShared, g_.dense_width, rows);
  }
  if (any_moe_) declare_moe();
  logits_ = add("logits", Sharing::kExternal, {rows, g_.vocab});
}

std::vector<Use> Builder::residual_reads() const {
  std::vector<Use> uses;
  for (int i = 0; i <= prefix_; ++i) uses.push_back({residual_[i], Use::kWhole});
  return uses;
}

void Builder::norm_stage(const char* name, const bf16_t* mix_norm, const bf16_t* mix_proj,
                         const bf16_t* norm, bool fp32) {
  NormSpec spec{};
  spec.n = g_.hidden;
  spec.ld = g_.hidden;
  spec.eps = spec.mix_eps = g_.norm_eps;
  spec.norm = norm;
  spec.mix_norm = mix_norm;
  spec.mix_proj = mix_proj;
  for (int i = 0; i <= prefix_; ++i) spec.sources.push_back(at(residual_[i]));
  spec.mixed = at(mixed_);
  spec.x = at(x_);
  spec.act = at(x_act_);
  std::vector<Use> writes{{x_, Use::kWhole}, {x_act_, Use::kWhole}};
  if (mixed_ >= 0) writes.push_back({mixed_, Use::kWhole});
  if (fp32) {
    spec.act_fp32 = at(x_act32_);
    writes.push_back({x_act32_, Use::kWhole});
    // Without a latent the experts take their rows from here.
    if (g_.latent == 0) {
      spec.row_act = at(moe_.row_act);
      spec.row_form = g_.expert_format;
      writes.push_back({moe_.row_act, Use::kWhole});
    }
  }
  stage({name, residual_reads(), std::move(writes), {}, false},
        std::make_unique<NormTask>(std::move(spec)));
}

void Builder::residual_stage(const char* name, const bf16_t* weight, int in, Region act,
                             bool start) {
  const Region prefix = residual_[prefix_];
  const Product product = start ? Product::kLinear : Product::kAccumulate;
  Products p{
      name, {{product, weight, in, g_.hidden, at(act), at(prefix)}}, {{act, Use::kWhole}}, {}};
  (start ? p.writes : p.adds).push_back(prefix);
  products(std::move(p));
}

void Builder::build_layer(int layer) {
  layer_ = layer;
  const LayerWeights& w = w_.layer[layer];
  norm_stage("attn.norm", w.attn_res_norm, w.attn_res_proj, w.input_norm, false);
  // A snapshot is the raw prefix: it stays where it is and the prefix starts anew in the next
  // region.
  const bool snapshot = g_.attn_res_block > 0 && layer % g_.attn_res_block == 0;
  if (snapshot) ++prefix_;
  if (w.is_mla) {
    build_mla(w.mla, snapshot);
    ++mla_index_;
  } else {
    build_kda(w.kda, snapshot);
    ++kda_index_;
  }
  norm_stage("ffn.norm", w.mlp_res_norm, w.mlp_res_proj, w.post_norm, !w.is_dense);
  if (w.is_dense) {
    build_dense(w.dense);
  } else {
    build_moe(w.moe);
  }
}

void Builder::build_dense(const DenseWeights& weights) {
  products({"dense.gate_up",
            {{Product::kGateUp, weights.gate_up, g_.hidden, g_.dense_width, at(x_act_),
              at(dense_h_), at(dense_act_)}},
            {{x_act_, Use::kWhole}},
            {dense_h_, dense_act_}});
  residual_stage("dense.down", weights.down, g_.dense_width, dense_act_, false);
}

void Builder::build_head() {
  layer_ = -1;
  norm_stage("head.norm", w_.output_res_norm, w_.output_res_proj, w_.final_norm, false);
  Products p{"head.logits",
             {{Product::kLinear, w_.lm_head, g_.hidden, g_.vocab, at(x_act_), {}}},
             {{x_act_, Use::kWhole}},
             {logits_}};
  p.barrier = false;  // the end of the run is one
  products(std::move(p));
}

void Builder::build() {
  stage({"embed", {}, {{residual_[0], program_->new_share()}}, {}, true},
        std::make_unique<EmbedTask>(w_.embed, g_.hidden, at(residual_[0])));
  for (int layer = 0; layer < g_.layers; ++layer) build_layer(layer);
  build_head();
  std::vector<Region> caches;
  for (Region region : {state_cache_, latent_cache_}) {
    if (region >= 0) caches.push_back(region);
  }
  std::vector<Region> outputs = caches;
  outputs.push_back(logits_);
  program_->check(*arena_, options_.members, caches, outputs);
}

}  // namespace stepfuse
