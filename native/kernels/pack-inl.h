// Activations as the product kernels read them: blocks of kRowBlock rows, pair by pair.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

struct RowSource {
  const float* x;
  std::int64_t ldx;
  const std::int32_t* index;
};
SF_INLINE const float* source_row(const RowSource& source, int row) {
  return source.x + (source.index ? source.index[row] : row) * source.ldx;
}

static std::size_t act_bytes(int k, int rows) {
  return (static_cast<std::size_t>(k) * static_cast<std::size_t>(rows) * sizeof(Act) + 63) / 64 *
         64;
}

// One row of a block of `stride` rows: pairs (k, k+1), each at distance 2 * stride.
static void pack_row_pairs(const float* x, int k, int stride, Act* act) {
  if (stride == 1) {
    int i = 0;
    for (; i + kLanes <= k; i += kLanes) store_act(act + i, load(x + i));
    for (; i < k; ++i) act[i] = to_act(x[i]);
    return;
  }
  for (int i = 0; i < k; i += 2, act += 2 * stride) {
    act[0] = to_act(x[i]);
    act[1] = to_act(x[i + 1]);
  }
}

static void pack_pairs(const float* x, std::int64_t ldx, const std::int32_t* index, int rows, int k,
                       void* act) {
  const RowSource source{x, ldx, index};
  for (int first = 0; first < rows; first += kRowBlock) {
    const int block = min_int(kRowBlock, rows - first);
    Act* base = static_cast<Act*>(act) + static_cast<std::int64_t>(first) * k;
    for (int r = 0; r < block; ++r) {
      pack_row_pairs(source_row(source, first + r), k, block, base + 2 * r);
    }
  }
}

static void pack_pairs_fp32(const float* x, std::int64_t ldx, const std::int32_t* index, int rows,
                            int k, void* act) {
  const RowSource source{x, ldx, index};
  for (int first = 0; first < rows; first += kRowBlock) {
    const int block = min_int(kRowBlock, rows - first);
    float* base = static_cast<float*>(act) + static_cast<std::int64_t>(first) * k;
    for (int r = 0; r < block; ++r) {
      const float* row = source_row(source, first + r);
      for (int i = 0; i < k; i += 2) {
        base[static_cast<std::int64_t>(i) * block + 2 * r] = row[i];
        base[static_cast<std::int64_t>(i) * block + 2 * r + 1] = row[i + 1];
      }
    }
  }
}

// Groups of columns in the level's own form, see fp4_pack.
static void pack_fp4(const float* x, std::int64_t ldx, const std::int32_t* index, int rows, int k,
                     void* act) {
  const RowSource source{x, ldx, index};
  const int groups = k / kFp4Group;
  for (int first = 0; first < rows; first += kRowBlock) {
    const int block = min_int(kRowBlock, rows - first);
    std::uint8_t* base =
        static_cast<std::uint8_t*>(act) + static_cast<std::int64_t>(first) * groups * kFp4RowBytes;
    for (int r = 0; r < block; ++r) {
      const float* row = source_row(source, first + r);
      for (int g = 0; g < groups; ++g) {
        fp4_pack(row + g * kFp4Group, block, r,
                 base + static_cast<std::int64_t>(g) * block * kFp4RowBytes);
      }
    }
  }
}
static_assert(kFp4RowBytes <= kFp4Group * static_cast<int>(sizeof(Act)),
              "act_bytes covers both forms");

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
