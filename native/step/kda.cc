#include "step/kda.h"

#include <cstring>

namespace stepfuse {
namespace {

constexpr int kStreams = 3;  // q, k, v

// A sequence's first token starts from zero state and an empty window, whatever the slot held.
void clear_heads(const KdaSpec& spec, float* state, bf16_t* conv, Range heads) {
  const std::int64_t square = std::int64_t{spec.dim} * spec.dim;
  const std::size_t count = heads.end - heads.begin;
  std::memset(state + heads.begin * square, 0, sizeof(float) * count * square);
  const std::int64_t width = std::int64_t{spec.heads} * spec.dim;
  for (int i = 0; i < (kConvTaps - 1) * kStreams; ++i) {
    std::memset(conv + i * width + heads.begin * spec.dim, 0, sizeof(bf16_t) * count * spec.dim);
  }
}

}  // namespace

// Heads a member does whatever the others do.
Range KdaTask::own(int member) const {
  Range heads = spec_.split.member[member];
  if (tail_ >= 0) heads.end -= (heads.end - heads.begin) / kTailPart;
  return heads;
}

void KdaTask::pack(const Run& run, int member, const LowRank& p) const {
  run.kernels->pack_pairs(p.low.fp32(member), p.rank, nullptr, run.rows, p.rank,
                          p.act.at<void>(member));
}

void KdaTask::expand(const Run& run, int member, const LowRank& p, Range heads) const {
  const int width = spec_.heads * spec_.dim;
  const int tiles = spec_.dim / kTileRows;
  run.kernels->linear({p.weight, p.act.at<void>(member), p.full.fp32(member), width, run.rows,
                       p.rank, width, heads.begin * tiles, heads.end * tiles});
}

void KdaTask::advance(const Run& run, int member, int row, Range heads) const {
  const StateView& view = run.caches->state[spec_.index];
  const std::int64_t slot = run.batch->slot[row];
  float* state = view.state + slot * view.state_stride;
  bf16_t* conv = view.conv + slot * view.conv_stride;
  if (run.batch->position[row] == 0) clear_heads(spec_, state, conv, heads);
  const std::int64_t at = std::int64_t{row} * spec_.heads * spec_.dim;
  KdaArgs args;
  args.q = spec_.q.fp32(member) + at;
  args.k = spec_.k.fp32(member) + at;
  args.v = spec_.v.fp32(member) + at;
  args.decay = spec_.decay.fp32(member) + at;
  args.beta = spec_.beta.fp32(member) + std::int64_t{row} * spec_.heads;
  args.gate = spec_.gate.fp32(member) + at;
  args.conv_weight = spec_.weights.conv;
  args.a_log = spec_.weights.a_log;
  args.dt_bias = spec_.weights.dt_bias;
  args.norm_weight = spec_.weights.o_norm;
  args.conv_state = conv;
  args.state = state;
  args.out = spec_.out.fp32(member) + at;
  args.heads = spec_.heads;
  args.dim = spec_.dim;
  args.head_begin = heads.begin;
  args.head_end = heads.end;
  args.gate_lower_bound = spec_.gate_lower_bound;
  args.norm_eps = spec_.norm_eps;
  run.kernels->kda(args);
}

// Rows of a sequence are adjacent and in token order. Several of them go head by head, so that a
// head's state (64 KiB at full size) stays in the cache while its tokens pass.
int KdaTask::advance_sequence(const Run& run, int member, int first, Range heads) const {
  const std::int32_t slot = run.batch->slot[first];
  int end = first + 1;
  while (end < run.rows && run.batch->slot[end] == slot) ++end;
  if (end == first + 1) {
    advance(run, member, first, heads);
    return end;
  }
  for (int head = heads.begin; head < heads.end; ++head) {
    for (int row = first; row < end; ++row) advance(run, member, row, {head, head + 1});
  }
  return end;
}

void KdaTask::heads(const Run& run, int member, Range heads) const {
  if (heads.begin == heads.end) return;
  expand(run, member, decay(), heads);
  if (spec_.gate_rank > 0) expand(run, member, gate(), heads);
  for (int row = 0; row < run.rows;) row = advance_sequence(run, member, row, heads);
  const int width = spec_.heads * spec_.dim;
  acts_.pack_pairs(spec_.out.fp32(member), width,
                   {run.rows, width, heads.begin * spec_.dim, heads.end * spec_.dim},
                   spec_.out_act.at<std::byte>(member));
}

void KdaTask::run(const Run& run, int member) const {
  pack(run, member, decay());
  if (spec_.gate_rank > 0) pack(run, member, gate());
  heads(run, member, own(member));
  if (tail_ < 0) return;
  const auto left = [this](int owner) { return spec_.split.member[owner].end - own(owner).end; };
  run.tails->take(tail_, member, left, [&](int owner, int i) {
    const int head = own(owner).end + i;
    heads(run, member, {head, head + 1});
  });
}

}  // namespace stepfuse
