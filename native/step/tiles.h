// The stage of matrix products: a list of packed BF16 matrices whose tiles the members share.
#pragma once

#include <vector>

#include "step/acts.h"
#include "step/program.h"

namespace stepfuse {

enum class Product { kLinear, kLinearFp32, kAccumulate, kGateUp };

// One matrix. `out` is the width of the result (kGateUp: of the activation); a tile is 32 columns
// of it, or 16 of a gate/up pair. kAccumulate adds into y.
struct Matrix {
  Product product;
  const bf16_t* weight;
  int in, out;
  Buffer act;
  Buffer y;  // base null: the caller's logits
  // Given: whoever computes columns also rounds them into it, as the next product's activation of
  // `form`; `alone`: with every row packed alone.
  Buffer packed = {};
  ExpertFormat form = ExpertFormat::kBf16;
  bool alone = false;

  int tile_columns() const { return product == Product::kGateUp ? kTileRows / 2 : kTileRows; }
  int tiles() const { return (out + tile_columns() - 1) / tile_columns(); }
  std::int64_t tile_bytes() const { return std::int64_t{kTileRows} * in * sizeof(bf16_t); }
};

class TilesTask final : public Task {
 public:
  // `splits` holds the tile shares of each matrix. `tail`: the stage's number among those whose
  // last chunks are taken by whoever is free, or -1.
  TilesTask(const KernelTable* kernels, Activation activation, int max_rows,
            std::vector<Matrix> matrices, const std::vector<Split>& splits, int tail);
  void run(const Run& run, int member) const override;

 private:
  struct Piece {
    int matrix;
    Range tiles;
  };
  struct Share {
    std::vector<Piece> own, tail;
  };
  void cut(const std::vector<Split>& splits, int member);
  void multiply(const Run& run, int member, const Piece& piece) const;

  Acts acts_;
  Activation activation_;
  int tail_;
  std::vector<Matrix> matrices_;
  std::vector<Share> shares_;
  std::vector<std::int32_t> rows_;  // 0, 1, 2, ...: the identity target of kAccumulate
  std::vector<float> ones_;
};

// Shares of all tiles of `matrices` by bytes.
std::vector<Split> split_tiles(const std::vector<Matrix>& matrices, int members);

}  // namespace stepfuse
