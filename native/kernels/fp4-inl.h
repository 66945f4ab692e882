// One packed MXFP4 weight tile times up to kGroupRows activation rows. A group of kFp4Group columns
// is summed first, in the level's own way, and then joins its accumulator (in memory: once per
// group) with one FMA by its scale. Passes over rows share a block of k as in linear-inl.h.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

static constexpr int kGroupBytes = kFp4Group / 2 * kTileRows;  // nibbles of one group of a tile
static constexpr int kBlockGroups = 16;                        // 8 KiB of nibbles

struct Fp4Block {
  const std::uint8_t* nibbles;
  const std::uint8_t* scales;
  const std::uint8_t* act;  // the row block at the first group
  int stride, in_block, groups;
  float* acc;
  const std::uint8_t* ahead;  // what the level prefetches, at the nibbles' own pace
};

// Tile vectors a pass sums side by side.
static constexpr int fp4_vectors(int rows) { return pass_vectors(rows, kFp4Accumulators); }

template <int M>
SF_NOINLINE void fp4_pass(const Fp4Block& b) {
  constexpr int kVectors = fp4_vectors(M);
  const std::uint8_t* nibbles = b.nibbles;
  const std::uint8_t* scales = b.scales;
  const std::uint8_t* act = b.act;
  const std::uint8_t* ahead = b.ahead;
  for (int g = 0; g < b.groups; ++g) {
    for (int v = 0; v < kTileVectors; v += kVectors) {
      Vec sum[kVectors][M];
      const int at = v * 4 * kLanes;
      fp4_group<M, kVectors>({nibbles + at, ahead + at}, {act, b.stride, b.in_block}, sum);
      SF_UNROLL for (int u = 0; u < kVectors; ++u) {
        const Vec scale = load_e8m0(scales + (v + u) * kLanes);
        SF_UNROLL for (int m = 0; m < M; ++m) {
          float* acc = b.acc + m * kTileRows + (v + u) * kLanes;
          store(acc, fma(sum[u][m], scale, load(acc)));
        }
      }
    }
    nibbles += kGroupBytes;
    scales += kTileRows;
    act += b.stride * kFp4RowBytes;
    ahead += kGroupBytes;
  }
}

static void fp4_dispatch(const Fp4Block& b, int rows) {
  switch (rows) {
    case 1:
      return fp4_pass<1>(b);
    case 2:
      return fp4_pass<2>(b);
    case 3:
      return fp4_pass<3>(b);
    case 4:
      return fp4_pass<4>(b);
    default:
      break;
  }
  if constexpr (kFp4RowsPass > 4) {
    switch (rows) {
      case 5:
        return fp4_pass<5>(b);
      case 6:
        return fp4_pass<6>(b);
      case 7:
        return fp4_pass<7>(b);
      default:
        return fp4_pass<8>(b);
    }
  }
}

struct Fp4Tile {
  const std::uint8_t* nibbles;
  const std::uint8_t* scales;
};

static void fp4_tile(const Fp4Tile& tile, const void* act, int in, const RowGroup& group,
                     float* acc) {
  int passes = 0;
  for (int row = 0; row < group.count; row += row_pass(group, row, kFp4RowsPass).rows) ++passes;
  const int groups = in / kFp4Group;
  const int block = passes == 1 ? groups : kBlockGroups;
  zero_rows(acc, group.count);
  for (int begin = 0; begin < groups; begin += block) {
    const int count = min_int(block, groups - begin);
    const std::uint8_t* at = tile.nibbles + static_cast<std::int64_t>(begin) * kGroupBytes;
    const std::uint8_t* scales = tile.scales + static_cast<std::int64_t>(begin) * kTileRows;
    const std::uint8_t* ahead = at + (passes == 1 ? kPrefetchBytes : block * kGroupBytes);
    for (int row = 0; row < group.count;) {
      const RowPass pass = row_pass(group, row, kFp4RowsPass);
      const std::uint8_t* rows =
          static_cast<const std::uint8_t*>(act) +
          (pass.act_rows * groups + static_cast<std::int64_t>(begin) * pass.stride) * kFp4RowBytes;
      fp4_dispatch(
          {at, scales, rows, pass.stride, pass.in_block, count, acc + row * kTileRows, ahead},
          pass.rows);
      ahead = at;  // the first pass has fetched the next block: the others look where they are
      row += pass.rows;
    }
  }
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
