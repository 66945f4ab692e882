#include "step/mix.h"

#include <cstring>

namespace stepfuse {
namespace {

// One snapshot per block and the prefix; the builder refuses more.
constexpr int kSourcesMax = 256;

}  // namespace

void EmbedTask::run(const Run& run, int member) const {
  for (int row = member; row < run.rows; row += run.members) {
    const std::int64_t token = run.batch->token[row];
    run.kernels->widen(embed_ + token * hidden_, hidden_,
                       out_.fp32(0) + std::int64_t{row} * hidden_);
  }
}

const float* NormTask::mix_row(const Run& run, int member, int row) const {
  const float* sources[kSourcesMax];
  const int count = static_cast<int>(spec_.sources.size());
  for (int i = 0; i < count; ++i) sources[i] = spec_.sources[i].fp32(member) + row * spec_.ld;
  if (count == 1) return sources[0];
  float* mixed = spec_.mixed.fp32(member);
  run.kernels->attn_res(
      {sources, count, spec_.n, spec_.mix_norm, spec_.mix_proj, spec_.mix_eps, mixed});
  return mixed;
}

void NormTask::run(const Run& run, int member) const {
  const int n = spec_.n;
  float* x = spec_.x.fp32(member);
  for (int row = 0; row < run.rows; ++row) {
    const float* source = mix_row(run, member, row);
    float* out = x + std::int64_t{row} * n;
    if (spec_.norm != nullptr) {
      run.kernels->rms_norm(source, spec_.norm, n, spec_.eps, out);
    } else {
      std::memcpy(out, source, sizeof(float) * n);
    }
  }
  if (spec_.act.base != nullptr) {
    run.kernels->pack_pairs(x, n, nullptr, run.rows, n, spec_.act.at<void>(member));
  }
  if (spec_.row_act.base != nullptr) {
    // In either form rows packed alone, one after the other, are one long row.
    const auto pack =
        spec_.row_form == ExpertFormat::kMxfp4 ? run.kernels->pack_fp4 : run.kernels->pack_pairs;
    pack(x, 0, nullptr, 1, run.rows * n, spec_.row_act.at<void>(member));
  }
  if (spec_.act_fp32.base != nullptr) {
    run.kernels->pack_pairs_fp32(x, n, nullptr, run.rows, n, spec_.act_fp32.at<void>(member));
  }
}

}  // namespace stepfuse
