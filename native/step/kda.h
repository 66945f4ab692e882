// The KDA stage after the projections: decay, gate, convolution, state and output of own heads.
#pragma once

#include "step/acts.h"
#include "step/program.h"

namespace stepfuse {

struct KdaSpec {
  KdaWeights weights;
  int heads, dim, decay_rank, gate_rank;
  float gate_lower_bound, norm_eps;
  int index;                    // among the KDA layers
  Split split;                  // of heads
  Buffer q, k, v, decay, gate;  // [rows][heads * dim]
  Buffer beta;                  // [rows][heads]
  Buffer f_a, g_a;              // [rows][rank]; g_a unused when gate_rank is 0
  Buffer f_act, g_act;          // scratch: pack_pairs of f_a and g_a
  Buffer out;                   // [rows][heads * dim]
  Buffer out_act;               // pack_pairs of out, each member its own heads
};

class KdaTask final : public Task {
 public:
  // `tail`: as in TilesTask; a chunk is a head.
  KdaTask(const KernelTable* kernels, KdaSpec spec, int tail)
      : acts_(kernels), spec_(spec), tail_(tail) {}
  void run(const Run& run, int member) const override;

 private:
  struct LowRank {
    const bf16_t* weight;
    Buffer low, act, full;
    int rank;
  };
  Range own(int member) const;
  void pack(const Run& run, int member, const LowRank& product) const;
  void expand(const Run& run, int member, const LowRank& product, Range heads) const;
  void heads(const Run& run, int member, Range heads) const;
  void advance(const Run& run, int member, int row, Range heads) const;
  int advance_sequence(const Run& run, int member, int first, Range heads) const;
  LowRank decay() const {
    return {spec_.weights.f_b, spec_.f_a, spec_.f_act, spec_.decay, spec_.decay_rank};
  }
  LowRank gate() const {
    return {spec_.weights.g_b, spec_.g_a, spec_.g_act, spec_.gate, spec_.gate_rank};
  }

  Acts acts_;
  KdaSpec spec_;
  int tail_;
};

}  // namespace stepfuse
