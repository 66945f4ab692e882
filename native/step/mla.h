// The MLA stages: own heads' queries absorbed into the latent, cache writes, attention, values.
#pragma once

#include "step/acts.h"
#include "step/program.h"

namespace stepfuse {

// Reference value: the latent norms of MLA do not use rms_norm_eps.
inline constexpr float kMlaNormEps = 1e-6f;

struct MlaSpec {
  MlaWeights weights;
  int heads, q_in, kv_lora, nope, rope, v_dim;
  bool output_gate;
  int index;                  // among the MLA layers
  Split split;                // of heads
  Buffer q_act;               // input of q_b: pack_pairs of [rows][q_in]
  Buffer q;                   // private [rows][heads * (nope + rope)]: edge tiles straddle heads
  Buffer head_act;            // scratch: pack_pairs of [rows][max(nope, kv_lora)]
  Buffer q_latent;            // [rows][heads][kv_lora]
  Buffer kv_a;                // [rows][kv_lora + rope]
  Buffer kv_norm;             // scratch [kv_lora]
  Buffer part_max, part_sum;  // [kMlaParts][heads]
  Buffer part_acc;            // [kMlaParts][heads][kv_lora]
  Buffer latent;              // [rows][heads][kv_lora]
  Buffer gate, out;           // [rows][heads * v_dim]
  Buffer out_act;             // pack_pairs of out, each member its own heads
};

// A row's cached tokens are attended in at most this many parts of equal length (a multiple of
// kMlaPartTokens that depends on the row's own length only), merged in order: neither the number of
// threads nor the other rows change the result.
inline constexpr int kMlaParts = 16;
inline constexpr int kMlaPartTokens = 512;
int mla_part_tokens(std::int64_t tokens);

class MlaQueryTask final : public Task {
 public:
  explicit MlaQueryTask(MlaSpec spec) : spec_(spec) {}
  void run(const Run& run, int member) const override;

 private:
  MlaSpec spec_;
};

// Member r % members normalises and stores row r's latent and pe.
class MlaWriteTask final : public Task {
 public:
  explicit MlaWriteTask(MlaSpec spec) : spec_(spec) {}
  void run(const Run& run, int member) const override;

 private:
  MlaSpec spec_;
};

class MlaAttendTask final : public Task {
 public:
  MlaAttendTask(const KernelTable* kernels, MlaSpec spec) : acts_(kernels), spec_(spec) {}
  void run(const Run& run, int member) const override;

 private:
  void attend(const Run& run, int member, int row) const;
  void values(const Run& run, int member, int head) const;

  Acts acts_;
  MlaSpec spec_;
};

}  // namespace stepfuse
