#include "step/tiles.h"

#include <numeric>

namespace stepfuse {

TilesTask::TilesTask(const KernelTable* kernels, Activation activation, int max_rows,
                     std::vector<Matrix> matrices, const std::vector<Split>& splits, int tail)
    : acts_(kernels),
      activation_(activation),
      tail_(tail),
      matrices_(std::move(matrices)),
      rows_(max_rows),
      ones_(max_rows, 1.0f) {
  std::iota(rows_.begin(), rows_.end(), 0);
  const int members = static_cast<int>(splits[0].member.size());
  for (int member = 0; member < members; ++member) cut(splits, member);
}

// The member's own tiles from the front of its share, and chunks of the rest.
void TilesTask::cut(const std::vector<Split>& splits, int member) {
  std::int64_t own = 0;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const Range tiles = splits[i].member[member];
    own += (tiles.end - tiles.begin) * matrices_[i].tile_bytes();
  }
  if (tail_ >= 0) own -= own / kTailPart;
  Share share;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const std::int64_t bytes = matrices_[i].tile_bytes();
    Range tiles = splits[i].member[member];
    const int matrix = static_cast<int>(i);
    const auto count = std::min<std::int64_t>(tiles.end - tiles.begin, (own + bytes - 1) / bytes);
    if (count > 0) share.own.push_back({matrix, {tiles.begin, tiles.begin + int(count)}});
    own -= count * bytes;
    const int chunk = static_cast<int>(std::max<std::int64_t>(1, kTailChunkBytes / bytes));
    for (int at = tiles.begin + static_cast<int>(count); at < tiles.end; at += chunk) {
      share.tail.push_back({matrix, {at, std::min(tiles.end, at + chunk)}});
    }
  }
  shares_.push_back(std::move(share));
}

void TilesTask::run(const Run& run, int member) const {
  for (const Piece& piece : shares_[member].own) multiply(run, member, piece);
  if (tail_ < 0) return;
  run.tails->take(
      tail_, member, [this](int owner) { return static_cast<int>(shares_[owner].tail.size()); },
      [&](int owner, int i) { multiply(run, member, shares_[owner].tail[i]); });
}

void TilesTask::multiply(const Run& run, int member, const Piece& piece) const {
  const Matrix& m = matrices_[piece.matrix];
  const Range tiles = piece.tiles;
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
  const Acts::Columns columns{run.rows, m.out, tiles.begin * m.tile_columns(),
                              std::min(m.out, tiles.end * m.tile_columns())};
  std::byte* packed = m.packed.at<std::byte>(member);
  if (m.alone) {
    acts_.pack_alone(m.form, y, m.out, columns, packed);
  } else {
    acts_.pack(m.form, y, m.out, columns, packed);
  }
}

std::vector<Split> split_tiles(const std::vector<Matrix>& matrices, int members) {
  std::vector<Job> jobs;
  for (const Matrix& matrix : matrices) jobs.push_back({matrix.tiles(), matrix.tile_bytes()});
  return split_bytes(jobs, members);
}

}  // namespace stepfuse
