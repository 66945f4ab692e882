// MXFP4 groups against FP32 or BF16 activations, for levels that decode kLanes rows into lanes;
// included inside the level's namespace, after fp4_dot. Activations of a group: [octet][pair
// j][rows][2], pair j holding columns j and j + 4 of its octet.
static constexpr int kFp4RowBytes = kFp4Group * static_cast<int>(sizeof(Act));

// One row's group into a block of `stride` rows; `act` is the group's start.
SF_INLINE void fp4_pack(const float* x, int stride, int row, void* act) {
  Act* to = static_cast<Act*>(act) + 2 * row;
  for (int octet = 0; octet < kFp4Group / 8; ++octet, x += 8) {
    for (int j = 0; j < 4; ++j, to += 2 * stride) {
      to[0] = to_act(x[j]);
      to[1] = to_act(x[j + 4]);
    }
  }
}

// Interleaves `rows` rows packed alone into one block.
SF_INLINE void fp4_gather(const std::uint8_t* const* alone, int rows, int groups,
                          std::uint8_t* block) {
  for (int r = 0; r < rows; ++r) {
    const Act* from = reinterpret_cast<const Act*>(alone[r]);
    Act* to = reinterpret_cast<Act*>(block) + 2 * r;
    for (int pair = 0; pair < groups * kFp4Group / 2; ++pair, from += 2, to += 2 * rows) {
      to[0] = from[0];
      to[1] = from[1];
    }
  }
}

// sum[v][m] = one group of columns, without its scale, for V weight vectors and M rows from `row`.
template <int M, int V>
SF_INLINE void fp4_group(const Fp4Weights& weights, const Fp4Rows& rows, Vec (*sum)[M]) {
  const std::uint8_t* nibbles = weights.nibbles;
  const Act* act = reinterpret_cast<const Act*>(rows.act) + 2 * rows.row;
  SF_UNROLL for (int v = 0; v < V; ++v) { SF_UNROLL for (int m = 0; m < M; ++m) sum[v][m] = Vec{}; }
  for (int octet = 0; octet < kFp4Group / 8; ++octet) {
    SF_UNROLL for (int v = 0; v < V; ++v) {
      fp4_dot<M>(sum[v], load_bits(nibbles + v * 4 * kLanes), act, rows.stride);
    }
    prefetch_octet<V>(weights, octet);
    nibbles += 4 * kTileRows;
    act += 8 * rows.stride;
  }
}
