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

SF_INLINE RowGroup row_group(int first, int rows) {
  return {first, min_int(kGroupRows, rows - first), rows};
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

template <class A>
static void linear_of(const LinearArgs& a) {
  alignas(64) float acc[kGroupRows * kTileRows];
  for (int tile = a.tile_begin; tile < a.tile_end; ++tile) {
    for (int first = 0; first < a.rows; first += kGroupRows) {
      const RowGroup group = row_group(first, a.rows);
      pairs_tile(pairs_at(a, tile), static_cast<const A*>(a.act), a.in, group, acc);
      store_tile(acc, group, linear_out(a, tile));
    }
  }
}
static void linear(const LinearArgs& a) { linear_of<Act>(a); }
static void linear_fp32(const LinearArgs& a) { linear_of<float>(a); }

static void linear_scatter(const LinearArgs& a, const Scatter& scatter) {
  alignas(64) float acc[kGroupRows * kTileRows];
  for (int tile = a.tile_begin; tile < a.tile_end; ++tile) {
    for (int first = 0; first < a.rows; first += kGroupRows) {
      const RowGroup group = row_group(first, a.rows);
      pairs_tile(pairs_at(a, tile), static_cast<const Act*>(a.act), a.in, group, acc);
      scatter_tile(acc, group, linear_out(a, tile), scatter);
    }
  }
}

static void gate_up(const GateUpArgs& a) {
  alignas(64) float acc[kGroupRows * kTileRows];
  for (int tile = a.tile_begin; tile < a.tile_end; ++tile) {
    for (int first = 0; first < a.rows; first += kGroupRows) {
      const RowGroup group = row_group(first, a.rows);
      pairs_tile(pairs_at(a, tile), static_cast<const Act*>(a.act), a.in, group, acc);
      activate_tile(acc, group, gate_up_out(a, tile), a.activation);
    }
  }
}

static void fp4_linear(const Fp4Args& a) {
  alignas(64) float acc[kGroupRows * kTileRows];
  for (int tile = a.tile_begin; tile < a.tile_end; ++tile) {
    for (int first = 0; first < a.rows; first += kGroupRows) {
      const RowGroup group = row_group(first, a.rows);
      fp4_tile(fp4_at(a, tile), a.act, a.in, group, acc);
      store_tile(acc, group, linear_out(a, tile));
    }
  }
}

static void fp4_scatter(const Fp4Args& a, const Scatter& scatter) {
  alignas(64) float acc[kGroupRows * kTileRows];
  for (int tile = a.tile_begin; tile < a.tile_end; ++tile) {
    for (int first = 0; first < a.rows; first += kGroupRows) {
      const RowGroup group = row_group(first, a.rows);
      fp4_tile(fp4_at(a, tile), a.act, a.in, group, acc);
      scatter_tile(acc, group, linear_out(a, tile), scatter);
    }
  }
}

static void fp4_gate_up(const Fp4GateUpArgs& a) {
  alignas(64) float acc[kGroupRows * kTileRows];
  for (int tile = a.tile_begin; tile < a.tile_end; ++tile) {
    for (int first = 0; first < a.rows; first += kGroupRows) {
      const RowGroup group = row_group(first, a.rows);
      fp4_tile(fp4_at(a, tile), a.act, a.in, group, acc);
      activate_tile(acc, group, gate_up_out(a, tile), a.activation);
    }
  }
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
