#include "step/mla.h"

namespace stepfuse {
namespace {

int tiles_of(int rows) { return (rows + kTileRows - 1) / kTileRows; }

// Elements of one head's packed matrix.
std::int64_t packed_elements(int out, int in) {
  return std::int64_t{tiles_of(out)} * kTileRows * in;
}

}  // namespace

int mla_part_tokens(std::int64_t tokens) {
  std::int64_t part = kMlaPartTokens;
  while ((tokens + part - 1) / part > kMlaParts) part *= 2;
  return static_cast<int>(part);
}

void MlaQueryTask::run(const Run& run, int member) const {
  const Range heads = spec_.split.member[member];
  if (heads.begin == heads.end) return;
  const int head_q = spec_.nope + spec_.rope;
  const int width = spec_.heads * head_q;
  float* q = spec_.q.fp32(member);
  run.kernels->linear({spec_.weights.q_b, spec_.q_act.at<void>(member), q, width, run.rows,
                       spec_.q_in, width, heads.begin * head_q / kTileRows,
                       tiles_of(heads.end * head_q)});
  void* act = spec_.head_act.at<void>(member);
  const std::int64_t latents = std::int64_t{spec_.heads} * spec_.kv_lora;
  for (int head = heads.begin; head < heads.end; ++head) {
    run.kernels->pack_pairs(q + head * head_q, width, nullptr, run.rows, spec_.nope, act);
    run.kernels->linear({spec_.weights.w_uk + head * packed_elements(spec_.kv_lora, spec_.nope),
                         act, spec_.q_latent.fp32(member) + std::int64_t{head} * spec_.kv_lora,
                         latents, run.rows, spec_.nope, spec_.kv_lora, 0, tiles_of(spec_.kv_lora)});
  }
}

void MlaWriteTask::run(const Run& run, int member) const {
  const LatentView& view = run.caches->latent[spec_.index];
  float* normed = spec_.kv_norm.fp32(member);
  for (int row = member; row < run.rows; row += run.members) {
    const float* kv = spec_.kv_a.fp32(member) + std::int64_t{row} * (spec_.kv_lora + spec_.rope);
    const std::int64_t position = run.batch->position[row];
    const std::int32_t* pages = run.batch->pages + row * run.batch->pages_stride;
    std::uint8_t* page = view.base + pages[position / view.page_tokens] * view.page_bytes;
    run.kernels->rms_norm(kv, spec_.weights.kv_a_norm, spec_.kv_lora, kMlaNormEps, normed);
    run.kernels->latent_write({normed, kv + spec_.kv_lora,
                               page + position % view.page_tokens * view.token_bytes, spec_.kv_lora,
                               spec_.rope, view.dtype});
  }
}

void MlaAttendTask::attend(const Run& run, int member, int row) const {
  const Range heads = spec_.split.member[member];
  const LatentView& view = run.caches->latent[spec_.index];
  const int head_q = spec_.nope + spec_.rope;
  const std::int64_t latents = std::int64_t{spec_.heads} * spec_.kv_lora;
  const std::int64_t tokens = run.batch->position[row] + 1;
  const int part_tokens = mla_part_tokens(tokens);
  const float* q = spec_.q.fp32(member) + std::int64_t{row} * spec_.heads * head_q;
  MlaArgs args;
  args.q_latent = spec_.q_latent.fp32(member) + row * latents;
  args.q_pe = q + spec_.nope;
  args.q_pe_stride = head_q;
  args.kv_base = view.base;
  args.page_bytes = view.page_bytes;
  args.token_bytes = view.token_bytes;
  args.pages = run.batch->pages + row * run.batch->pages_stride;
  args.page_tokens = view.page_tokens;
  args.dtype = view.dtype;
  args.latent = spec_.kv_lora;
  args.rope = spec_.rope;
  args.head_begin = heads.begin;
  args.head_end = heads.end;
  args.scale = 1.0f / __builtin_sqrtf(static_cast<float>(head_q));
  int parts = 0;
  for (std::int64_t begin = 0; begin < tokens; begin += part_tokens, ++parts) {
    args.token_begin = static_cast<int>(begin);
    args.token_end = static_cast<int>(std::min<std::int64_t>(begin + part_tokens, tokens));
    args.max = spec_.part_max.fp32(member) + parts * spec_.heads;
    args.sum = spec_.part_sum.fp32(member) + parts * spec_.heads;
    args.acc = spec_.part_acc.fp32(member) + parts * latents;
    run.kernels->mla(args);
  }
  for (int head = heads.begin; head < heads.end; ++head) {
    const std::int64_t at = std::int64_t{head} * spec_.kv_lora;
    run.kernels->mla_merge(spec_.part_max.fp32(member) + head, spec_.part_sum.fp32(member) + head,
                           spec_.part_acc.fp32(member) + at, parts, spec_.heads, latents,
                           spec_.kv_lora, spec_.latent.fp32(member) + row * latents + at);
  }
}

void MlaAttendTask::values(const Run& run, int member, int head) const {
  const std::int64_t latents = std::int64_t{spec_.heads} * spec_.kv_lora;
  const int width = spec_.heads * spec_.v_dim;
  void* act = spec_.head_act.at<void>(member);
  float* out = spec_.out.fp32(member) + head * spec_.v_dim;
  run.kernels->pack_pairs(spec_.latent.fp32(member) + std::int64_t{head} * spec_.kv_lora, latents,
                          nullptr, run.rows, spec_.kv_lora, act);
  run.kernels->linear({spec_.weights.w_uv + head * packed_elements(spec_.v_dim, spec_.kv_lora), act,
                       out, width, run.rows, spec_.kv_lora, spec_.v_dim, 0, tiles_of(spec_.v_dim)});
  if (!spec_.output_gate) return;
  const float* gate = spec_.gate.fp32(member) + head * spec_.v_dim;
  for (int row = 0; row < run.rows; ++row) {
    const std::int64_t at = std::int64_t{row} * width;
    run.kernels->sigmoid_gate(gate + at, spec_.v_dim, out + at);
  }
}

void MlaAttendTask::run(const Run& run, int member) const {
  const Range heads = spec_.split.member[member];
  if (heads.begin == heads.end) return;
  for (int row = 0; row < run.rows; ++row) attend(run, member, row);
  for (int head = heads.begin; head < heads.end; ++head) values(run, member, head);
  const int width = spec_.heads * spec_.v_dim;
  acts_.pack_pairs(spec_.out.fp32(member), width,
                   {run.rows, width, heads.begin * spec_.v_dim, heads.end * spec_.v_dim},
                   spec_.out_act.at<std::byte>(member));
}

}  // namespace stepfuse
