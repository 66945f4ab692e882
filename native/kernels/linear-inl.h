// One packed BF16 weight tile times up to kGroupRows activation rows.
//
// Lane = output row of the tile, so each output is one chain over k, the same for every number of
// rows. A pass holds the accumulators of up to kRowsPass rows and some vectors of the tile. Where a
// tile needs several passes, k is cut into blocks that stay in the first-level cache, and the
// accumulators rest in `acc` between them: weights come from memory once per kGroupRows rows.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

// Rows whose activations of one k block (16 KiB in FP32) share the caches with 8 KiB of weights.
static constexpr int kGroupRows = 64;
static constexpr int kBlockPairs = 64;
static constexpr int kPairWords = 2 * kTileRows;  // BF16 words of one k pair of a tile
// This far ahead covers the memory latency of a core that shares its link: on two cores of a Zen 4
// complex 2-4 % better than 8 KiB and 5-10 % better than 16 KiB; 1 KiB is worse than none.
static constexpr int kPrefetchBytes = 4096;

// Rows [first, first + count) of a call of `total` rows; first is a multiple of kGroupRows.
struct RowGroup {
  int first, count, total;
};
// The rows of one pass: `rows` rows from `row` (within the group) of a block of `stride` rows whose
// activations start `act_rows` rows after the buffer's start.
struct RowPass {
  int row, rows, stride, in_block;
  std::int64_t act_rows;
};
SF_INLINE RowPass row_pass(const RowGroup& group, int row, int rows_pass) {
  const int block = row / kRowBlock * kRowBlock;
  const int stride = min_int(kRowBlock, group.count - block);
  const int in_block = row - block;
  return {row, min_int(rows_pass, stride - in_block), stride, in_block, group.first + block};
}

// Tile vectors one pass covers with `rows` rows.
static constexpr int pass_vectors(int rows, int accumulators) {
  return rows >= accumulators                  ? 1
         : kTileVectors * rows <= accumulators ? kTileVectors
         : accumulators / rows >= 8            ? 8
         : accumulators / rows >= 4            ? 4
         : accumulators / rows >= 2            ? 2
                                               : 1;
}
SF_INLINE int count_passes(const RowGroup& group) {
  int passes = 0;
  for (int row = 0; row < group.count;) {
    const RowPass pass = row_pass(group, row, kRowsPass);
    passes += kTileVectors / pass_vectors(pass.rows, kAccumulators);
    row += pass.rows;
  }
  return passes;
}

// What the passes over one block of k share the prefetching of: each takes an equal part of
// `bytes`.
struct Ahead {
  const char* at;
  std::int64_t step;  // bytes per k step
};
SF_INLINE Ahead ahead_of(const void* block, std::int64_t bytes, int passes, int pass) {
  const char* at = static_cast<const char*>(block);
  if (passes == 1) return {at + kPrefetchBytes, 2 * kPairWords};
  return {at + bytes + bytes / passes * pass, 2 * kPairWords / passes};
}

template <class A>
struct PairsBlock {
  const bf16_t* weight;  // the tile at the block's first pair
  const A* act;          // the pass's first row at that pair
  int stride, pairs;
  float* acc;  // [rows of the pass][kTileRows]
  Ahead ahead;
};

// One k pair. FP32 activations go half by half: all even elements, then all odd ones, which keeps
// no more than V weights and one broadcast beside the accumulators.
template <class A, int M, int V>
SF_INLINE void pairs_step(Vec (*sum)[V], const bf16_t* weight, const A* act) {
  if constexpr (sizeof(A) == sizeof(float)) {
    SF_UNROLL for (int odd = 0; odd < 2; ++odd) {
      Vec wide[V];
      SF_UNROLL for (int v = 0; v < V; ++v) {
        const Bits words = load_bits(weight + v * 2 * kLanes);
        wide[v] = odd ? odd_words(words) : even_words(words);
      }
      SF_UNROLL for (int m = 0; m < M; ++m) {
        const Vec x = set1(act[2 * m + odd]);
        SF_UNROLL for (int v = 0; v < V; ++v) sum[m][v] = fma(wide[v], x, sum[m][v]);
      }
    }
  } else {
    SF_UNROLL for (int v = 0; v < V; ++v) {
      const Bits words = load_bits(weight + v * 2 * kLanes);
      SF_UNROLL for (int m = 0; m < M; ++m) sum[m][v] = dot_pair(sum[m][v], words, act + 2 * m);
    }
  }
}

template <class A, int M, int V>
SF_NOINLINE void pairs_pass(const PairsBlock<A>& b) {
  Vec sum[M][V];
  SF_UNROLL for (int m = 0; m < M; ++m) {
    SF_UNROLL for (int v = 0; v < V; ++v) sum[m][v] = load(b.acc + m * kTileRows + v * kLanes);
  }
  const bf16_t* weight = b.weight;
  const A* act = b.act;
  const char* ahead = b.ahead.at;
  for (int i = 0; i < b.pairs; ++i) {
    prefetch(ahead);
    if constexpr (V == kTileVectors) prefetch(ahead + 64);
    pairs_step<A, M, V>(sum, weight, act);
    weight += kPairWords;
    act += 2 * b.stride;
    ahead += b.ahead.step;
  }
  SF_UNROLL for (int m = 0; m < M; ++m) {
    SF_UNROLL for (int v = 0; v < V; ++v) store(b.acc + m * kTileRows + v * kLanes, sum[m][v]);
  }
}

// All vectors of the tile for M rows; `next` moves the prefetch share on by one pass.
template <class A, int M>
static void pairs_rows(PairsBlock<A> b, std::int64_t next) {
  constexpr int kVectors = pass_vectors(M, kAccumulators);
  for (int v = 0; v < kTileVectors; v += kVectors) {
    pairs_pass<A, M, kVectors>(b);
    b.weight += kVectors * 2 * kLanes;
    b.acc += kVectors * kLanes;
    b.ahead.at += next;
  }
}

template <class A>
static void pairs_dispatch(const PairsBlock<A>& b, int rows, std::int64_t next) {
  switch (rows) {
    case 1:
      return pairs_rows<A, 1>(b, next);
    case 2:
      return pairs_rows<A, 2>(b, next);
    case 3:
      return pairs_rows<A, 3>(b, next);
    case 4:
      return pairs_rows<A, 4>(b, next);
    default:
      break;
  }
  if constexpr (kRowsPass > 4) {
    switch (rows) {
      case 5:
        return pairs_rows<A, 5>(b, next);
      case 6:
        return pairs_rows<A, 6>(b, next);
      case 7:
        return pairs_rows<A, 7>(b, next);
      default:
        return pairs_rows<A, 8>(b, next);
    }
  }
}

SF_INLINE void zero_rows(float* acc, int rows) {
  for (int i = 0; i < rows * kTileRows; i += kLanes) store(acc + i, Vec{});
}

// acc [count][kTileRows] = the tile at `weight` times the group's rows. `act` is the whole buffer.
template <class A>
static void pairs_tile(const bf16_t* weight, const A* act, int in, const RowGroup& group,
                       float* acc) {
  const int passes = count_passes(group);
  const int pairs = in / 2;
  const int block = passes == 1 ? pairs : kBlockPairs;
  zero_rows(acc, group.count);
  for (int begin = 0; begin < pairs; begin += block) {
    const int count = min_int(block, pairs - begin);
    const bf16_t* at = weight + static_cast<std::int64_t>(begin) * kPairWords;
    const std::int64_t bytes = static_cast<std::int64_t>(count) * kPairWords * 2;
    Ahead ahead = ahead_of(at, bytes, passes, 0);
    for (int row = 0; row < group.count;) {
      const RowPass pass = row_pass(group, row, kRowsPass);
      const A* rows = act + pass.act_rows * in +
                      (static_cast<std::int64_t>(begin) * pass.stride + pass.in_block) * 2;
      pairs_dispatch<A>({at, rows, pass.stride, count, acc + row * kTileRows, ahead}, pass.rows,
                        bytes / passes);
      ahead.at += bytes / passes * (kTileVectors / pass_vectors(pass.rows, kAccumulators));
      row += pass.rows;
    }
  }
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
