// One packed MXFP4 weight tile times up to kGroupRows activation rows. As linear-inl.h; a group of
// kFp4Group columns is summed first and then joins the accumulator with one FMA by its scale.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

static constexpr int kOctetBytes = 4 * kTileRows;  // nibbles of eight columns of a tile
static constexpr int kGroupOctets = kFp4Group / 8;
static constexpr int kBlockGroups = 16;  // 8 KiB of nibbles

struct Fp4Block {
  const std::uint8_t* nibbles;
  const std::uint8_t* scales;
  const Act* act;
  int stride, groups;
  float* acc;
  Ahead ahead;
};

template <int M, int V>
static void fp4_pass(const Fp4Block& b) {
  const std::uint8_t* nibbles = b.nibbles;
  const std::uint8_t* scales = b.scales;
  const Act* act = b.act;
  const char* ahead = b.ahead.at;
  for (int g = 0; g < b.groups; ++g) {
    Vec part[V][M][kFp4Parts] = {};
    for (int octet = 0; octet < kGroupOctets; ++octet) {
      prefetch(ahead);
      if constexpr (V == kTileVectors) prefetch(ahead + 64);
      SF_UNROLL for (int v = 0; v < V; ++v) {
        fp4_dot<M>(part[v], load_bits(nibbles + v * 4 * kLanes), act, b.stride);
      }
      nibbles += kOctetBytes;
      act += 8 * b.stride;
      ahead += b.ahead.step;
    }
    SF_UNROLL for (int v = 0; v < V; ++v) {
      const Vec scale = load_e8m0(scales + v * kLanes);
      SF_UNROLL for (int m = 0; m < M; ++m) {
        float* acc = b.acc + m * kTileRows + v * kLanes;
        store(acc, fma(fp4_join(part[v][m]), scale, load(acc)));
      }
    }
    scales += kTileRows;
  }
}

// Tile vectors one pass covers: what the accumulators allow, at most kFp4Vectors.
static constexpr int fp4_vectors(int rows) {
  const int most = pass_vectors(rows, kAccumulators / kFp4Parts);
  return most < kFp4Vectors ? most : kFp4Vectors;
}

template <int M>
static void fp4_rows(Fp4Block b, std::int64_t next) {
  constexpr int kVectors = fp4_vectors(M);
  for (int v = 0; v < kTileVectors; v += kVectors) {
    fp4_pass<M, kVectors>(b);
    b.nibbles += kVectors * 4 * kLanes;
    b.scales += kVectors * kLanes;
    b.acc += kVectors * kLanes;
    b.ahead.at += next;
  }
}

static void fp4_dispatch(const Fp4Block& b, int rows, std::int64_t next) {
  switch (rows) {
    case 1:
      return fp4_rows<1>(b, next);
    case 2:
      return fp4_rows<2>(b, next);
    case 3:
      return fp4_rows<3>(b, next);
    case 4:
      return fp4_rows<4>(b, next);
    default:
      break;
  }
  if constexpr (kRowsPass > 4) {
    switch (rows) {
      case 5:
        return fp4_rows<5>(b, next);
      case 6:
        return fp4_rows<6>(b, next);
      case 7:
        return fp4_rows<7>(b, next);
      default:
        return fp4_rows<8>(b, next);
    }
  }
}

struct Fp4Tile {
  const std::uint8_t* nibbles;
  const std::uint8_t* scales;
};

SF_INLINE int fp4_count_passes(const RowGroup& group) {
  int passes = 0;
  for (int row = 0; row < group.count;) {
    const RowPass pass = row_pass(group, row);
    passes += kTileVectors / fp4_vectors(pass.rows);
    row += pass.rows;
  }
  return passes;
}

static void fp4_tile(const Fp4Tile& tile, const Act* act, int in, const RowGroup& group,
                     float* acc) {
  const int passes = fp4_count_passes(group);
  const int groups = in / kFp4Group;
  const int block = passes == 1 ? groups : kBlockGroups;
  zero_rows(acc, group.count);
  for (int begin = 0; begin < groups; begin += block) {
    const int count = min_int(block, groups - begin);
    const std::uint8_t* at =
        tile.nibbles + static_cast<std::int64_t>(begin) * kGroupOctets * kOctetBytes;
    const std::uint8_t* scales = tile.scales + static_cast<std::int64_t>(begin) * kTileRows;
    const std::int64_t bytes = static_cast<std::int64_t>(count) * kGroupOctets * kOctetBytes;
    Ahead ahead = ahead_of(at, bytes, passes, 0);
    for (int row = 0; row < group.count;) {
      const RowPass pass = row_pass(group, row);
      const Act* rows = act + pass.act_rows * in +
                        static_cast<std::int64_t>(begin) * kFp4Group * pass.stride +
                        2 * pass.in_block;
      fp4_dispatch({at, scales, rows, pass.stride, count, acc + row * kTileRows, ahead}, pass.rows,
                   bytes / passes);
      ahead.at += bytes / passes * (kTileVectors / fp4_vectors(pass.rows));
      row += pass.rows;
    }
  }
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
