// The stages every member repeats for itself: embedding rows, residual mixes, norms, packing.
#pragma once

#include <vector>

#include "step/program.h"

namespace stepfuse {

// Row r of the embedding into `out` [rows][hidden], by member r % members.
class EmbedTask final : public Task {
 public:
  EmbedTask(const bf16_t* embed, int hidden, Buffer out)
      : embed_(embed), hidden_(hidden), out_(out) {}
  void run(const Run& run, int member) const override;

 private:
  const bf16_t* embed_;
  int hidden_;
  Buffer out_;
};

// x = RMSNorm(mix(sources)) for every row, repeated by each member in memory of its own, which is
// cheaper than a barrier. One source: no mix. Outputs that are null are left out.
struct NormSpec {
  int n;
  float eps;
  const bf16_t* norm;           // null: no norm
  std::vector<Buffer> sources;  // [rows][ld] each, the prefix last
  std::int64_t ld;
  const bf16_t *mix_norm, *mix_proj;
  float mix_eps;
  Buffer mixed;     // [n], scratch of the mix
  Buffer x;         // [rows][n]
  Buffer act;       // pack_pairs of x
  Buffer act_fp32;  // pack_pairs_fp32 of x
  Buffer row_act;   // every row of x packed alone, in `row_form`
  ExpertFormat row_form;
};

class NormTask final : public Task {
 public:
  explicit NormTask(NormSpec spec) : spec_(std::move(spec)) {}
  void run(const Run& run, int member) const override;

 private:
  const float* mix_row(const Run& run, int member, int row) const;

  NormSpec spec_;
};

}  // namespace stepfuse
