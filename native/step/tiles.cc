#include "step/tiles.h"

#include <numeric>

namespace stepfuse {

TilesTask::TilesTask(const KernelTable* kernels, Activation activation, int max_rows,
                     std::vector<Matrix> matrices, std::vector<Split> splits)
    : acts_(kernels),
      activation_(activation),
      matrices_(std::move(matrices)),
      splits_(std::move(splits)),
      rows_(max_rows),
      ones_(max_rows, 1.0f) {
  std::iota(rows_.begin(), rows_.end(), 0);
}

void TilesTask::run(const Run& run, int member) const {
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const Range tiles = splits_[i].member[member];
    if (tiles.begin < tiles.end) multiply(run, member, matrices_[i], tiles);
  }
}

void TilesTask::multiply(const Run& run, int member, const Matrix& m, Range tiles) const {
  float* y = m.y.base == nullptr ? run.batch->logits : m.y.fp32(member);
  const void* act = m.act.at<void>(member);
  const LinearArgs args{m.weight, act, y, m.out, run.rows, m.in, m.out, tiles.begin, tiles.end};
  switch (m.product) {
    case Product::kLinear:
      run.kernels->linear(args);
      break;
    case Product::kLinearFp32:
      run.kernels->linear_fp32(args);
      break;
    case Product::kAccumulate:
      run.kernels->linear_scatter(args, Scatter{rows_.data(), ones_.data()});
      break;
    case Product::kGateUp:
      run.kernels->gate_up(
          {m.weight, act, y, m.out, run.rows, m.in, m.out, tiles.begin, tiles.end, activation_});
      break;
  }
  if (m.packed.base == nullptr) return;
  const int begin = tiles.begin * m.tile_columns();
  const int end = std::min(m.out, tiles.end * m.tile_columns());
  acts_.pack_pairs(y, m.out, run.rows, m.out, begin, end, m.packed.at<std::byte>(member));
}

std::vector<Split> split_tiles(const std::vector<Matrix>& matrices, int members) {
  std::vector<Job> jobs;
  for (const Matrix& matrix : matrices) jobs.push_back({matrix.tiles(), matrix.tile_bytes()});
  return split_bytes(jobs, members);
}

}  // namespace stepfuse
