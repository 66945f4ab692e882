// Activation buffers that several members fill, each its own columns.
#pragma once

#include <algorithm>

#include "stepfuse/kernels.h"

namespace stepfuse {

// Addresses inside an activation buffer (kernels.h): blocks of kRowBlock rows, in which a range of
// columns is contiguous. Ranges begin and end at pairs, MXFP4 ranges at groups of kFp4Group.
class Acts {
 public:
  explicit Acts(const KernelTable* kernels)
      : kernels_(kernels), element_(kernels->act_bytes(64, kRowBlock) / (64 * kRowBlock)) {}

  // At least what a buffer of either form takes.
  std::size_t bytes(std::int64_t k, std::int64_t rows) const { return element_ * k * rows; }

  // Columns [k0, k1) of x [rows][k] into the buffer of the whole of it.
  void pack_pairs(const float* x, std::int64_t ldx, int rows, int k, int k0, int k1,
                  std::byte* act) const {
    pack(kernels_->pack_pairs, {x, ldx, rows, k, k0, k1}, element_, act);
  }
  void pack_fp4(const float* x, std::int64_t ldx, int rows, int k, int k0, int k1,
                std::byte* act) const {
    pack(kernels_->pack_fp4, {x, ldx, rows, k / kFp4Group, k0 / kFp4Group, k1 / kFp4Group},
         static_cast<std::size_t>(kernels_->fp4_row_bytes), act, kFp4Group);
  }

 private:
  struct Columns {  // k, k0 and k1 count units
    const float* x;
    std::int64_t ldx;
    int rows, k, k0, k1;
  };

  template <class Pack>
  void pack(Pack pack_block, const Columns& c, std::size_t unit_bytes, std::byte* act,
            int unit = 1) const {
    if (c.k0 >= c.k1) return;
    for (int r = 0; r < c.rows; r += kRowBlock) {
      const int block = std::min(kRowBlock, c.rows - r);
      const std::size_t before = std::size_t{1} * c.k * r + std::size_t{1} * c.k0 * block;
      pack_block(c.x + r * c.ldx + c.k0 * unit, c.ldx, nullptr, block, (c.k1 - c.k0) * unit,
                 act + before * unit_bytes);
    }
  }

  const KernelTable* kernels_;
  std::size_t element_;
};

}  // namespace stepfuse
