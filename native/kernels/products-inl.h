// The product entries of the table: tile products and what becomes of them.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

// One tile's results: columns [column, column + columns) of y for the rows of a group.
struct TileOut {
  float* y;
  std::int64_t ldy;
  int column, columns;
};

SF_INLINE void store_tile(const float* acc, const RowGroup& group, const TileOut& out) {
  for (int r = 0; r < group.count; ++r) {
    float* to = out.y + (group.first + r) * out.ldy + out.column;
    const float* from = acc + r * kTileRows;
    int n = 0;
    for (; n + kLanes <= out.columns; n += kLanes) store(to + n, load(from + n));
    for (; n < out.columns; ++n) to[n] = from[n];
  }
}

SF_INLINE void scatter_tile(const float* acc, const RowGroup& group, const TileOut& out,
                            const Scatter& scatter) {
  for (int r = 0; r < group.count; ++r) {
    float* to = out.y + scatter.target[group.first + r] * out.ldy + out.column;
    const float scale = scatter.scale[group.first + r];
    const float* from = acc + r * kTileRows;
    int n = 0;
    for (; n + kLanes <= out.columns; n += kLanes) {
      store(to + n, fma(set1(scale), load(from + n), load(to + n)));
    }
    for (; n < out.columns; ++n) to[n] = fma_one(scale, from[n], to[n]);
  }
}

// Gate rows are the tile's first half, up rows the second.
SF_INLINE void activate_tile(const float* acc, const RowGroup& group, const TileOut& out,
                             const Activation& activation) {
  for (int r = 0; r < group.count; ++r) {
    float* to = out.y + (group.first + r) * out.ldy + out.column;
    const float* gate = acc + r * kTileRows;
    for (int n = 0; n < out.columns; n += kLanes) {
      const Vec y = activate(load(gate + n), load(gate + kTileRows / 2 + n), activation);
      if (out.columns - n >= kLanes) {
        store(to + n, y);
      } else {
        store_some(to + n, y, out.columns - n);
      }
    }
  }
}

// Activations of one group stay in the second-level cache while the tiles pass.
static constexpr std::int64_t kGroupBytesMost = 512 << 10;

SF_INLINE int rows_of_group(std::int64_t row_bytes) {
  const std::int64_t rows = kGroupBytesMost / row_bytes / kRowBlock * kRowBlock;
  return rows < kRowBlock ? kRowBlock : rows > kGroupRows ? kGroupRows : static_cast<int>(rows);
}

template <class Args>
SF_INLINE TileOut linear_out(const Args& a, int tile) {
  return {a.y, a.ldy, tile * kTileRows, min_int(kTileRows, a.out - tile * kTileRows)};
}
template <class Args>
SF_INLINE TileOut gate_up_out(const Args& a, int tile) {
  const int half = kTileRows / 2;
  return {a.y, a.ldy, tile * half, min_int(half, a.width - tile * half)};
}
template <class Args>
SF_INLINE const bf16_t* pairs_at(const Args& a, int tile) {
  return a.weight + static_cast<std::int64_t>(tile) * a.in * kTileRows;
}
template <class Args>
SF_INLINE Fp4Tile fp4_at(const Args& a, int tile) {
  const std::int64_t columns = static_cast<std::int64_t>(tile) * a.in;
  return {a.nibbles + columns * (kTileRows / 2), a.scales + columns};
}
static_assert(kTileRows == kFp4Group, "fp4_at: one scale byte per column of a tile");

// All tiles of a call, group of rows by group of rows: `tile` fills a tile's results, `out` says
// what becomes of them.
template <class Args, class Tile, class Out>
SF_INLINE void each_tile(const Args& a, std::int64_t row_bytes, Tile tile, Out out) {
  alignas(64) float acc[kGroupRows * kTileRows];
  const int most = rows_of_group(row_bytes);
  for (int first = 0; first < a.rows; first += most) {
    const RowGroup group{first, min_int(most, a.rows - first), a.rows};
    for (int t = a.tile_begin; t < a.tile_end; ++t) {
      tile(t, group, acc);
      out(t, group, acc);
    }
  }
}

template <class A, class Args, class Out>
SF_INLINE void each_pairs_tile(const Args& a, Out out) {
  const auto tile = [&a](int t, const RowGroup& group, float* acc) {
    pairs_tile(pairs_at(a, t), static_cast<const A*>(a.act), a.in, group, acc);
  };
  each_tile(a, a.in * static_cast<std::int64_t>(sizeof(A)), tile, out);
}
template <class Args, class Out>
SF_INLINE void each_fp4_tile(const Args& a, Out out) {
  const auto tile = [&a](int t, const RowGroup& group, float* acc) {
    fp4_tile(fp4_at(a, t), a.act, a.in, group, acc);
  };
  each_tile(a, static_cast<std::int64_t>(a.in / kFp4Group) * kFp4RowBytes, tile, out);
}

template <class Args>
SF_INLINE auto storing(const Args& a) {
  return [&a](int t, const RowGroup& group, const float* acc) {
    store_tile(acc, group, linear_out(a, t));
  };
}
template <class Args>
SF_INLINE auto scattering(const Args& a, const Scatter& scatter) {
  return [&a, &scatter](int t, const RowGroup& group, const float* acc) {
    scatter_tile(acc, group, linear_out(a, t), scatter);
  };
}
template <class Args>
SF_INLINE auto activating(const Args& a) {
  return [&a](int t, const RowGroup& group, const float* acc) {
    activate_tile(acc, group, gate_up_out(a, t), a.activation);
  };
}

static void linear(const LinearArgs& a) { each_pairs_tile<Act>(a, storing(a)); }
static void linear_fp32(const LinearArgs& a) { each_pairs_tile<float>(a, storing(a)); }
static void linear_scatter(const LinearArgs& a, const Scatter& scatter) {
  each_pairs_tile<Act>(a, scattering(a, scatter));
}
static void gate_up(const GateUpArgs& a) { each_pairs_tile<Act>(a, activating(a)); }
static void fp4_linear(const Fp4Args& a) { each_fp4_tile(a, storing(a)); }
static void fp4_scatter(const Fp4Args& a, const Scatter& scatter) {
  each_fp4_tile(a, scattering(a, scatter));
}
static void fp4_gate_up(const Fp4GateUpArgs& a) { each_fp4_tile(a, activating(a)); }

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
