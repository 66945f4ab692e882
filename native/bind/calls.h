// What one op call carries from Python: addresses and shapes, filled by stepfuse.ops.*.native after
// it has checked dtypes, shapes and contiguity. Addresses are data_ptr() values that the caller
// keeps alive.
#pragma once

#include "stepfuse/kernels.h"
#include "stepfuse/team.h"

namespace stepfuse {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// The kernels ops run on; set_level changes it.
const KernelTable& kernels();

// One member's share of a call; without a team the caller is the only member.
struct Share {
  int index, count;
  Member* member;
  void barrier(const char* stage) const {
    if (member != nullptr) member->barrier(stage);
  }
  // The part of [0, n) this member owns: contiguous, in member order.
  int begin(int n) const { return part(n, index); }
  int end(int n) const { return part(n, index + 1); }

 private:
  int part(int n, int i) const {
    return static_cast<int>(static_cast<std::int64_t>(n) * i / count);
  }
};

// Runs body(Share) on every member and returns when all are done. The body must not throw.
template <class Body>
void on_team(Team* team, Body& body) {
  if (team == nullptr) {
    body(Share{0, 1, nullptr});
    return;
  }
  team->run(
      [](void* context, Member member) {
        (*static_cast<Body*>(context))(Share{member.index, member.count, &member});
      },
      &body);
}

// Packed BF16 weight times rows. `heads` > 0: one matrix per head, x and y [rows][heads][...].
struct ProductCall {
  Address weight = 0, x = 0, y = 0;
  int rows = 0, in_features = 0, out_features = 0, heads = 0;
};

// Rows of one sequence: a row of an int64 [n][4] array.
struct SpanRow {
  std::int64_t start, rows, slot, cached;
};

struct ExpertsCall {
  Address x = 0, y = 0, ids = 0, weights = 0;  // FP32, FP32, int32 [rows][chosen], FP32
  Address data = 0;
  std::int64_t expert_bytes = 0;
  std::int64_t w13_offset = 0, w13_scale_offset = 0, w2_offset = 0, w2_scale_offset = 0;
  int rows = 0, chosen = 0, experts = 0, in_features = 0, width = 0;
  bool mxfp4 = false;
};

struct KdaCall {
  Address q = 0, k = 0, v = 0, decay = 0, beta = 0, gate = 0, out = 0;
  Address conv_weight = 0, a_log = 0, dt_bias = 0, norm_weight = 0;
  Address state = 0, conv_state = 0;
  std::int64_t state_stride = 0, conv_stride = 0;  // elements per slot
  Address spans = 0;                               // SpanRow [span_count]
  int span_count = 0, heads = 0, dim = 0;
  float gate_lower_bound = 0, norm_eps = 0;
};

struct MlaCall {
  Address q_latent = 0, q_pe = 0, out = 0;
  Address kv_base = 0;
  std::int64_t page_bytes = 0, token_bytes = 0;
  Address spans = 0, pages = 0;  // SpanRow [span_count], int32 [span_count][pages_stride]
  std::int64_t pages_stride = 0;
  int span_count = 0, page_tokens = 0, heads = 0, latent = 0, rope = 0;
  bool fp8 = false;
  float scale = 0;
};

struct LatentCall {
  Address latent = 0, pe = 0;
  Address kv_base = 0;
  std::int64_t page_bytes = 0, token_bytes = 0;
  Address spans = 0, pages = 0;
  std::int64_t pages_stride = 0;
  int span_count = 0, page_tokens = 0, latent_dim = 0, rope = 0;
  bool fp8 = false;
};

struct RouterCall {
  Address logits = 0, bias = 0, ids = 0, weights = 0;
  int rows = 0, experts = 0, chosen = 0;
  float scaling = 0;
  bool renormalize = false;
};

struct MixCall {
  Address sources = 0, norm = 0, proj = 0, out = 0;  // sources [count][rows][n]
  int count = 0, rows = 0, n = 0;
  float eps = 0;
};

}  // namespace stepfuse
