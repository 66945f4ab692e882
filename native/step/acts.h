// Activation buffers that several members fill, each its own columns.
#pragma once

#include <algorithm>

#include "stepfuse/kernels.h"

namespace stepfuse {

// Addresses inside an activation buffer (kernels.h: blocks of kRowBlock rows, each [k/2][rows][2]
// or [k/8][4][rows][2]): columns [k0, k1) of a block are contiguous, k0 and k1 multiples of the
// group.
class Acts {
 public:
  explicit Acts(const KernelTable* kernels)
      : kernels_(kernels), element_(kernels->act_bytes(64, kRowBlock) / (64 * kRowBlock)) {}

  std::size_t bytes(std::int64_t k, std::int64_t rows) const { return element_ * k * rows; }

  // Columns [k0, k1) of x [rows][k] into the buffer of the whole of it.
  void pack_pairs(const float* x, std::int64_t ldx, int rows, int k, int k0, int k1,
                  std::byte* act) const {
    pack(kernels_->pack_pairs, x, ldx, rows, k, k0, k1, act);
  }
  void pack_fp4(const float* x, std::int64_t ldx, int rows, int k, int k0, int k1,
                std::byte* act) const {
    pack(kernels_->pack_fp4, x, ldx, rows, k, k0, k1, act);
  }

 private:
  template <class Pack>
  void pack(Pack pack_block, const float* x, std::int64_t ldx, int rows, int k, int k0, int k1,
            std::byte* act) const {
    if (k0 >= k1) return;
    for (int r = 0; r < rows; r += kRowBlock) {
      const int block = std::min(kRowBlock, rows - r);
      pack_block(x + r * ldx + k0, ldx, nullptr, block, k1 - k0,
                 act + bytes(k, r) + bytes(k0, block));
    }
  }

  const KernelTable* kernels_;
  std::size_t element_;
};

}  // namespace stepfuse
