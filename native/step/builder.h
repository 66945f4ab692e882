// Turns a model's shape and weights into the stages of one decode step.
#pragma once

#include <string>
#include <vector>

#include "step/experts.h"
#include "step/kda.h"
#include "step/mix.h"
#include "step/mla.h"
#include "step/program.h"
#include "step/tiles.h"
#include "stepfuse/geometry.h"

namespace stepfuse {

struct BuildOptions {
  int members;
  // KDA projections of own heads without a barrier before the state update: the low-rank inputs are
  // then computed by every member, and the stage has no tail.
  bool fuse_heads;
};

class Builder {
 public:
  Builder(const Geometry& geometry, const ModelWeights& weights, const KernelTable* kernels,
          BuildOptions options, Arena* arena, Program* program);

  // Declares every region; the arena is allocated after it and before build().
  void declare();
  // Adds all stages and checks the program.
  void build();
  bool fused_heads() const { return fused_; }

 private:
  struct StageText {
    const char* name;
    std::vector<Use> reads, writes;
    std::vector<Split> splits;
    bool barrier;
    int tail = -1;
  };
  // Products whose tiles the members share by bytes, with a tail; `adds` are read and written.
  struct Products {
    const char* name;
    std::vector<Matrix> matrices;
    std::vector<Use> reads;
    std::vector<Region> writes, adds = {};
    bool barrier = true;
  };

  Region add(const char* name, Sharing sharing, std::vector<std::int64_t> shape);
  Region add_act(const char* name, Sharing sharing, std::int64_t k, std::int64_t rows);
  void stage(StageText text, std::unique_ptr<Task> task);
  void products(Products products);
  Buffer at(Region region) const { return region < 0 ? Buffer{} : arena_->buffer(region); }
  std::vector<Use> residual_reads() const;
  // Mix, norm and pack of the residual stream into x; with `mix_norm` null there is no mix.
  void norm_stage(const char* name, const bf16_t* mix_norm, const bf16_t* mix_proj,
                  const bf16_t* norm, bool fp32);
  // A stage of matrices that add to (or start) the residual stream.
  void residual_stage(const char* name, const bf16_t* weight, int in, Region act, bool start);

  void declare_kda();
  void declare_mla();
  void declare_moe();
  void build_layer(int layer);
  void build_kda(const KdaWeights& weights, bool start);
  void kda_project(const KdaWeights& weights);
  KdaSpec kda_spec(const KdaWeights& weights) const;
  void build_mla(const MlaWeights& weights, bool start);
  void mla_project(const MlaWeights& weights);
  MlaSpec mla_spec(const MlaWeights& weights) const;
  void build_dense(const DenseWeights& weights);
  void build_moe(const MoeWeights& weights);
  void moe_front(const MoeWeights& weights);
  void moe_latent_up(const MoeWeights& weights);
  ExpertsSpec experts_spec(const MoeWeights& weights) const;
  void build_head();

  const Geometry g_;
  const ModelWeights w_;
  const KernelTable* kernels_;
  const BuildOptions options_;
  Arena* arena_;
  Program* program_;
  bool fused_ = false;
  bool any_kda_ = false, any_mla_ = false, any_dense_ = false, any_moe_ = false;

  int layer_ = -1;
  int prefix_ = 0;  // region of the running prefix; the regions before it are the snapshots
  int kda_index_ = 0, mla_index_ = 0;
  int kda_share_ = 0, mla_share_ = 0;
  Split kda_split_, mla_split_;

  std::vector<Region> residual_;
  Region x_ = -1, x_act_ = -1, x_act32_ = -1, mixed_ = -1, logits_ = -1;
  Region state_cache_ = -1, latent_cache_ = -1;
  struct {
    Region q, k, v, gate, decay, beta, f_a, g_a = -1, f_act, g_act = -1, out, out_act;
  } kda_{};
  struct {
    Region q_a = -1, q_norm = -1, q_act = -1, kv_a, gate = -1, q, head_act, q_latent, kv_norm;
    Region part_max, part_sum, part_acc, latent, out, out_act;
  } mla_{};
  Region dense_h_ = -1, dense_act_ = -1;
  struct {
    Region logits, latent = -1, shared_h = -1, shared_act = -1, table, row_act, gather_act, h,
                   h_act;
    Region sum = -1, latent_x = -1, latent_act = -1;
  } moe_{};
};

}  // namespace stepfuse
