// The stage of matrix products: a list of packed BF16 matrices whose tiles the members share.
#pragma once

#include <vector>

#include "step/acts.h"
#include "step/program.h"

namespace stepfuse {

enum class Product { kLinear, kLinearFp32, kAccumulate, kGateUp };

// One matrix. `out` is the width of the result (kGateUp: of the activation); a tile is 32 columns
// of it, or 16 of a gate/up pair. kAccumulate adds into y. When `packed` is given, each member also
// rounds its columns into it as the next product's activation.
struct Matrix {
  Product product;
  const bf16_t* weight;
  int in, out;
  Buffer act;
  Buffer y;  // base null: the caller's logits
  Buffer packed;

  int tile_columns() const { return product == Product::kGateUp ? kTileRows / 2 : kTileRows; }
  int tiles() const { return (out + tile_columns() - 1) / tile_columns(); }
  std::int64_t tile_bytes() const { return std::int64_t{kTileRows} * in * sizeof(bf16_t); }
};

class TilesTask final : public Task {
 public:
  // `splits` holds the tile shares of each matrix.
  TilesTask(const KernelTable* kernels, Activation activation, int max_rows,
            std::vector<Matrix> matrices, std::vector<Split> splits);
  void run(const Run& run, int member) const override;

 private:
  void multiply(const Run& run, int member, const Matrix& matrix, Range tiles) const;

  Acts acts_;
  Activation activation_;
  std::vector<Matrix> matrices_;
  std::vector<Split> splits_;
  std::vector<std::int32_t> rows_;  // 0, 1, 2, ...: the identity target of kAccumulate
  std::vector<float> ones_;
};

// Shares of all tiles of `matrices` by bytes.
std::vector<Split> split_tiles(const std::vector<Matrix>& matrices, int members);

}  // namespace stepfuse
