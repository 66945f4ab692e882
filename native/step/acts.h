// Activation buffers that several members fill, each its own columns.
#pragma once

#include <algorithm>

#include "stepfuse/kernels.h"

namespace stepfuse {

// Addresses inside an activation buffer (kernels.h): blocks of kRowBlock rows, in which a range of
// columns is contiguous. Ranges begin and end at pairs, MXFP4 ranges at groups of kFp4Group.
class Acts {
 public:
  explicit Acts(const KernelTable* kernels) : kernels_(kernels) {}

  // At least what a buffer of either form takes.
  std::size_t bytes(std::int64_t k, std::int64_t rows) const {
    return kernels_->act_bytes(static_cast<int>(k), 1) * rows;
  }
  // Bytes of `rows` rows of the form of MXFP4 products or of BF16 ones, without padding.
  std::size_t form_bytes(ExpertFormat format, std::int64_t k, std::int64_t rows) const {
    const Form form = form_of(format);
    return static_cast<std::size_t>(k / form.columns * rows) * form.bytes;
  }

  // Columns [k0, k1) of x [rows][k] into the buffer of the whole of it.
  struct Columns {
    int rows, k, k0, k1;
  };
  void pack(ExpertFormat format, const float* x, std::int64_t ldx, const Columns& c,
            std::byte* act) const {
    if (c.k0 >= c.k1) return;
    for (int r = 0; r < c.rows; r += kRowBlock) {
      pack_block(form_of(format), x + r * ldx, ldx,
                 {std::min(kRowBlock, c.rows - r), c.k, c.k0, c.k1},
                 act + form_bytes(format, c.k, r));
    }
  }
  void pack_pairs(const float* x, std::int64_t ldx, const Columns& c, std::byte* act) const {
    pack(ExpertFormat::kBf16, x, ldx, c, act);
  }
  // The same with every row packed alone, for products that gather their rows.
  void pack_alone(ExpertFormat format, const float* x, std::int64_t ldx, const Columns& c,
                  std::byte* act) const {
    if (c.k0 >= c.k1) return;
    for (int r = 0; r < c.rows; ++r) {
      pack_block(form_of(format), x + r * ldx, ldx, {1, c.k, c.k0, c.k1},
                 act + form_bytes(format, c.k, r));
    }
  }

 private:
  using Pack = decltype(KernelTable::pack_pairs);
  struct Form {
    Pack pack;
    int columns;  // that are packed together
    int bytes;    // of them, per row
  };

  Form form_of(ExpertFormat format) const {
    if (format == ExpertFormat::kMxfp4) {
      return {kernels_->pack_fp4, kFp4Group, kernels_->fp4_row_bytes};
    }
    return {kernels_->pack_pairs, 2, kernels_->pair_bytes};
  }

  static void pack_block(const Form& form, const float* x, std::int64_t ldx, const Columns& c,
                         std::byte* act) {
    const std::size_t before = static_cast<std::size_t>(c.k0 / form.columns) * c.rows * form.bytes;
    form.pack(x + c.k0, ldx, nullptr, c.rows, c.k1 - c.k0, act + before);
  }

  const KernelTable* kernels_;
};

}  // namespace stepfuse
