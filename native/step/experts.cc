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

// Bytes of 32 output rows of `in` columns of an expert's matrix.
std::int64_t tile_bytes(const ExpertsSpec& spec, std::int64_t in) {
  if (spec.format == ExpertFormat::kBf16) return kTileRows * in * 2;
  return kTileRows * (in / 2 + in / kFp4Group);
}

// Units of a share of `count` that its owner does whatever the others do.
std::int64_t own_of(std::int64_t count) { return count - count / kTailPart; }

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
  return static_cast<std::int64_t>(sizeof(ExpertTable)) + 4 * (6 * pairs + 1 + experts);
}

ExpertTable* expert_table_at(void* memory, int top_k, int rows) {
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
  return table;
}

void RouteTask::run(const Run& run, int member) const {
  ExpertTable* table = expert_table_at(spec_.table.at<void>(member), spec_.top_k, spec_.max_rows);
  for (int row = 0; row < run.rows; ++row) {
    run.kernels->router_select({spec_.logits.fp32(member) + std::int64_t{row} * spec_.experts,
                                spec_.weights.bias, table->ids + row * spec_.top_k,
                                table->chosen + row * spec_.top_k, spec_.experts, spec_.top_k,
                                spec_.scaling, spec_.renormalize});
  }
  fill_table(table, spec_.experts, spec_.top_k, run.rows);
  table->gathered = -1;
}

// Rows were packed once, each alone; only an expert with several rows gathers them.
const std::byte* ExpertsUpTask::activation(const Run& run, int member, ExpertTable& table,
                                           int i) const {
  const std::byte* alone = spec_.row_act.at<std::byte>(member);
  const std::int32_t* rows = table.row + table.first[i];
  if (rows_of(table, i) == 1) return alone + acts_.form_bytes(spec_.format, spec_.in, rows[0]);
  std::byte* act = spec_.gather_act.at<std::byte>(member);
  if (table.gathered != i) {
    const auto gather =
        spec_.format == ExpertFormat::kMxfp4 ? run.kernels->gather_fp4 : run.kernels->gather_pairs;
    gather(alone, rows, rows_of(table, i), spec_.in, act);
    table.gathered = i;
  }
  return act;
}

void ExpertsUpTask::multiply(const Run& run, int member, ExpertTable& table, int i,
                             Range units) const {
  const std::byte* act = activation(run, member, table, i);
  const std::uint8_t* block = block_of(spec_, table, i);
  const int rows = rows_of(table, i);
  const int width = spec_.width;
  const int tiles = (width + kUnitColumns / 2 - 1) / (kUnitColumns / 2);
  const int begin = units.begin * kUnitTiles;
  const int end = std::min(tiles, units.end * kUnitTiles);
  float* h = spec_.h.fp32(member) + std::int64_t{table.first[i]} * width;
  if (spec_.format == ExpertFormat::kMxfp4) {
    run.kernels->fp4_gate_up({block + spec_.weights.w13_offset,
                              block + spec_.weights.w13_scale_offset, act, h, width, rows, spec_.in,
                              width, begin, end, spec_.activation});
  } else {
    run.kernels->gate_up({reinterpret_cast<const bf16_t*>(block + spec_.weights.w13_offset), act, h,
                          width, rows, spec_.in, width, begin, end, spec_.activation});
  }
  const Acts::Columns columns{rows, width, units.begin * kUnitColumns,
                              std::min(width, units.end * kUnitColumns)};
  acts_.pack(
      spec_.format, h, width, columns,
      spec_.h_act.at<std::byte>(member) + acts_.form_bytes(spec_.format, width, table.first[i]));
}

void ExpertsUpTask::units(const Run& run, int member, std::int64_t begin, std::int64_t end) const {
  ExpertTable& table = *spec_.table.at<ExpertTable>(member);
  const int per_expert = tiles_of(spec_.width);
  while (begin < end) {
    const int i = static_cast<int>(begin / per_expert);
    const int first = static_cast<int>(begin % per_expert);
    const int last = static_cast<int>(std::min<std::int64_t>(per_expert, first + end - begin));
    multiply(run, member, table, i, {first, last});
    begin += last - first;
  }
}

void ExpertsUpTask::run(const Run& run, int member) const {
  const ExpertTable& table = *spec_.table.at<ExpertTable>(member);
  const std::int64_t total = std::int64_t{table.count} * tiles_of(spec_.width);
  const auto begin = [&](std::int64_t owner) { return total * owner / run.members; };
  const auto own_end = [&](int owner) {
    return begin(owner) + own_of(begin(owner + 1) - begin(owner));
  };
  units(run, member, begin(member), own_end(member));
  const std::int64_t unit_bytes = kUnitTiles * tile_bytes(spec_, spec_.in);
  const std::int64_t chunk = std::max<std::int64_t>(1, kTailChunkBytes / unit_bytes);
  const auto chunks = [&](int owner) {
    return static_cast<int>((begin(owner + 1) - own_end(owner) + chunk - 1) / chunk);
  };
  run.tails->take(tail_, member, chunks, [&](int owner, int i) {
    const std::int64_t first = own_end(owner) + i * chunk;
    units(run, member, first, std::min(begin(owner + 1), first + chunk));
  });
}

ExpertsDownTask::ExpertsDownTask(const KernelTable* kernels, ExpertsSpec spec, int tail)
    : acts_(kernels), spec_(spec), tail_(tail), rows_(spec.max_rows), ones_(spec.max_rows, 1.0f) {
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
    const std::byte* act = spec_.h_act.at<std::byte>(member) +
                           acts_.form_bytes(spec_.format, spec_.width, table.first[i]);
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

// All that is added into these columns. The shared expert comes first where both are.
void ExpertsDownTask::tiles(const Run& run, int member, const ExpertTable& table,
                            Range tiles) const {
  if (spec_.shared_width > 0 && !apart()) shared(run, member, tiles);
  routed(run, member, table, tiles);
}

void ExpertsDownTask::run(const Run& run, int member) const {
  const ExpertTable& table = *spec_.table.at<ExpertTable>(member);
  const auto share = [&](int units, std::int64_t owner) {
    return Range{static_cast<int>(units * owner / run.members),
                 static_cast<int>(units * (owner + 1) / run.members)};
  };
  const int columns = tiles_of(spec_.in);
  if (apart()) {
    tiles(run, member, table, share(columns, member));
    const int width = tiles_of(spec_.hidden);
    const auto count = [&](int owner) {
      const Range range = share(width, owner);
      return range.end - range.begin;
    };
    run.tails->take(tail_, member, count, [&](int owner, int i) {
      const int tile = share(width, owner).begin + i;
      shared(run, member, {tile, tile + 1});
    });
    return;
  }
  const auto own_end = [&](int owner) {
    const Range range = share(columns, owner);
    return range.begin + static_cast<int>(own_of(range.end - range.begin));
  };
  tiles(run, member, table, {share(columns, member).begin, own_end(member)});
  const auto count = [&](int owner) { return share(columns, owner).end - own_end(owner); };
  run.tails->take(tail_, member, count, [&](int owner, int i) {
    const int tile = own_end(owner) + i;
    tiles(run, member, table, {tile, tile + 1});
  });
}

}  // namespace stepfuse
