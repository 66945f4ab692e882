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
  Buffer rank_act;              // scratch: pack_pairs of [rows][rank]
  Buffer out;                   // [rows][heads * dim]
  Buffer out_act;               // pack_pairs of out, each member its own heads
};

class KdaTask final : public Task {
 public:
  KdaTask(const KernelTable* kernels, KdaSpec spec) : acts_(kernels), spec_(spec) {}
  void run(const Run& run, int member) const override;

 private:
  void expand(const Run& run, int member, const bf16_t* weight, Buffer low, int rank,
              Buffer full) const;
  void advance(const Run& run, int member, int row, Range heads) const;
  int advance_sequence(const Run& run, int member, int first) const;

  Acts acts_;
  KdaSpec spec_;
};

}  // namespace stepfuse
