#include "step/experts.h"

#include <cstring>
#include <numeric>

namespace stepfuse {
namespace {

constexpr int kUnitColumns = kTileRows;  // two gate/up tiles: whole MXFP4 activation groups
constexpr int kUnitTiles = 2;

int tiles_of(int rows) { return (rows + kTileRows - 1) / kTileRows; }

int rows_of(const ExpertTable& table, int i) { return table.first[i + 1] - table.first[i]; }

const std::uint8_t* block_of(const ExpertsSpec& spec, const ExpertTable& table, int i) {
  return spec.weights.experts + table.expert[i] * spec.weights.expert_bytes;
}

std::int64_t down_tile_bytes(const ExpertsSpec& spec) {
  if (spec.format == ExpertFormat::kBf16) return std::int64_t{kTileRows} * spec.width * 2;
  return std::int64_t{kTileRows} * (spec.width / 2 + spec.width / kFp4Group);
}

// Counts each expert's rows, then deals the rows out in ascending order.
void fill_table(ExpertTable* table, int experts, int top_k, int rows) {
  std::memset(table->tally, 0, sizeof(std::int32_t) * experts);
  const int pairs = rows * top_k;
  for (int i = 0; i < pairs; ++i) ++table->tally[table->ids[i]];
  std::int32_t next = 0;
  table->count = 0;
  for (int e = 0; e < experts; ++e) {
    const std::int32_t rows_here = table->tally[e];
    if (rows_here == 0) continue;
    table->expert[table->count] = e;
    table->first[table->count++] = next;
    table->tally[e] = next;  // from here on: where this expert's next row goes
    next += rows_here;
  }
  table->first[table->count] = next;
  for (int i = 0; i < pairs; ++i) {
    const std::int32_t at = table->tally[table->ids[i]]++;
    table->row[at] = i / top_k;
    table->weight[at] = table->chosen[i];
  }
}

}  // namespace

std::int64_t expert_table_bytes(int experts, int top_k, int rows) {
  const std::int64_t pairs = std::int64_t{rows} * top_k;
  return static_cast<std::int64_t>(sizeof(ExpertTable)) + 4 * (6 * pairs + 1 + experts) + rows;
}

ExpertTable* expert_table_at(void* memory, int experts, int top_k, int rows) {
  auto* table = static_cast<ExpertTable*>(memory);
  const std::int64_t pairs = std::int64_t{rows} * top_k;
  auto* words = reinterpret_cast<std::int32_t*>(table + 1);
  table->expert = words;
  table->first = table->expert + pairs;
  table->row = table->first + pairs + 1;
  table->weight = reinterpret_cast<float*>(table->row + pairs);
  table->ids = table->row + 2 * pairs;
  table->chosen = reinterpret_cast<float*>(table->ids + pairs);
  table->tally = table->ids + 2 * pairs;
  table->packed = reinterpret_cast<std::uint8_t*>(table->tally + experts);
  return table;
}

void RouteTask::run(const Run& run, int member) const {
  ExpertTable* table =
      expert_table_at(spec_.table.at<void>(member), spec_.experts, spec_.top_k, spec_.max_rows);
  for (int row = 0; row < run.rows; ++row) {
    run.kernels->router_select({spec_.logits.fp32(member) + std::int64_t{row} * spec_.experts,
                                spec_.weights.bias, table->ids + row * spec_.top_k,
                                table->chosen + row * spec_.top_k, spec_.experts, spec_.top_k,
                                spec_.scaling, spec_.renormalize});
  }
  fill_table(table, spec_.experts, spec_.top_k, run.rows);
  std::memset(table->packed, 0, run.rows);
}

// A row's activation is packed once however many experts it goes to; only an expert with several
// rows gathers them anew.
const std::byte* ExpertsUpTask::activation(const Run& run, int member, const ExpertTable& table,
                                           int i) const {
  const auto pack =
      spec_.format == ExpertFormat::kMxfp4 ? run.kernels->pack_fp4 : run.kernels->pack_pairs;
  const float* x = spec_.x.fp32(member);
  const std::int32_t* rows = table.row + table.first[i];
  if (rows_of(table, i) > 1) {
    std::byte* act = spec_.gather_act.at<std::byte>(member);
    pack(x, spec_.in, rows, rows_of(table, i), spec_.in, act);
    return act;
  }
  std::byte* act = spec_.row_act.at<std::byte>(member) + acts_.bytes(spec_.in, rows[0]);
  if (table.packed[rows[0]] == 0) {
    pack(x + std::int64_t{rows[0]} * spec_.in, spec_.in, nullptr, 1, spec_.in, act);
    table.packed[rows[0]] = 1;
  }
  return act;
}

void ExpertsUpTask::multiply(const Run& run, int member, const ExpertTable& table, int i,
                             Range units) const {
  const std::byte* act = activation(run, member, table, i);
  const std::uint8_t* block = block_of(spec_, table, i);
  const int rows = rows_of(table, i);
  const int width = spec_.width;
  const int tiles = (width + kUnitColumns / 2 - 1) / (kUnitColumns / 2);
  const int begin = units.begin * kUnitTiles;
  const int end = std::min(tiles, units.end * kUnitTiles);
  float* h = spec_.h.fp32(member) + std::int64_t{table.first[i]} * width;
  std::byte* h_act = spec_.h_act.at<std::byte>(member) + acts_.bytes(width, table.first[i]);
  const int k0 = units.begin * kUnitColumns;
  const int k1 = std::min(width, units.end * kUnitColumns);
  if (spec_.format == ExpertFormat::kMxfp4) {
    run.kernels->fp4_gate_up({block + spec_.weights.w13_offset,
                              block + spec_.weights.w13_scale_offset, act, h, width, rows, spec_.in,
                              width, begin, end, spec_.activation});
    acts_.pack_fp4(h, width, rows, width, k0, k1, h_act);
  } else {
    run.kernels->gate_up({reinterpret_cast<const bf16_t*>(block + spec_.weights.w13_offset), act, h,
                          width, rows, spec_.in, width, begin, end, spec_.activation});
    acts_.pack_pairs(h, width, rows, width, k0, k1, h_act);
  }
}

void ExpertsUpTask::run(const Run& run, int member) const {
  const ExpertTable& table = *spec_.table.at<ExpertTable>(member);
  const int units = tiles_of(spec_.width);
  const std::int64_t total = std::int64_t{table.count} * units;
  std::int64_t at = total * member / run.members;
  const std::int64_t end = total * (member + 1) / run.members;
  while (at < end) {
    const int i = static_cast<int>(at / units);
    const int first = static_cast<int>(at % units);
    const int last = static_cast<int>(std::min<std::int64_t>(units, first + end - at));
    multiply(run, member, table, i, {first, last});
    at += last - first;
  }
}

ExpertsDownTask::ExpertsDownTask(const KernelTable* kernels, ExpertsSpec spec)
    : acts_(kernels), spec_(spec), rows_(spec.max_rows), ones_(spec.max_rows, 1.0f) {
  std::iota(rows_.begin(), rows_.end(), 0);
}

void ExpertsDownTask::shared(const Run& run, int member, Range tiles) const {
  if (tiles.begin >= tiles.end) return;
  run.kernels->linear_scatter(
      {spec_.weights.shared_down, spec_.shared_act.at<void>(member), spec_.prefix.fp32(member),
       spec_.hidden, run.rows, spec_.shared_width, spec_.hidden, tiles.begin, tiles.end},
      {rows_.data(), ones_.data()});
}

void ExpertsDownTask::routed(const Run& run, int member, const ExpertTable& table,
                             Range tiles) const {
  if (tiles.begin >= tiles.end) return;
  float* out = spec_.out.fp32(member);
  if (spec_.clear) {
    const int begin = tiles.begin * kTileRows;
    const int columns = std::min(spec_.in, tiles.end * kTileRows) - begin;
    for (int row = 0; row < run.rows; ++row) {
      std::memset(out + std::int64_t{row} * spec_.in + begin, 0, sizeof(float) * columns);
    }
  }
  for (int i = 0; i < table.count; ++i) {
    const std::uint8_t* block = block_of(spec_, table, i);
    const Scatter scatter{table.row + table.first[i], table.weight + table.first[i]};
    const std::byte* act =
        spec_.h_act.at<std::byte>(member) + acts_.bytes(spec_.width, table.first[i]);
    if (spec_.format == ExpertFormat::kMxfp4) {
      run.kernels->fp4_scatter(
          {block + spec_.weights.w2_offset, block + spec_.weights.w2_scale_offset, act, out,
           spec_.in, rows_of(table, i), spec_.width, spec_.in, tiles.begin, tiles.end},
          scatter);
    } else {
      run.kernels->linear_scatter(
          {reinterpret_cast<const bf16_t*>(block + spec_.weights.w2_offset), act, out, spec_.in,
           rows_of(table, i), spec_.width, spec_.in, tiles.begin, tiles.end},
          scatter);
    }
  }
}

void ExpertsDownTask::run(const Run& run, int member) const {
  const ExpertTable& table = *spec_.table.at<ExpertTable>(member);
  const std::int64_t routed_bytes = table.count * down_tile_bytes(spec_);
  const std::int64_t shared_bytes = std::int64_t{kTileRows} * spec_.shared_width * 2;
  if (spec_.out.base == spec_.prefix.base) {
    // Both sums go to the same columns: one owner per column adds the shared part first.
    const Job job{tiles_of(spec_.in), routed_bytes + shared_bytes};
    const Range tiles = share_bytes(&job, 1, 0, member, run.members);
    if (spec_.shared_width > 0) shared(run, member, tiles);
    routed(run, member, table, tiles);
    return;
  }
  const Job jobs[2] = {{tiles_of(spec_.in), routed_bytes},
                       {spec_.shared_width > 0 ? tiles_of(spec_.hidden) : 0, shared_bytes}};
  routed(run, member, table, share_bytes(jobs, 2, 0, member, run.members));
  if (spec_.shared_width > 0) shared(run, member, share_bytes(jobs, 2, 1, member, run.members));
}

}  // namespace stepfuse
