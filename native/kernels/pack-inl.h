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

// Enough for either form; only a whole number of groups has the MXFP4 form.
static std::size_t act_bytes(int k, int rows) {
  const std::size_t pairs = static_cast<std::size_t>(k) * sizeof(Act);
  const std::size_t groups = static_cast<std::size_t>(k / kFp4Group) * kFp4RowBytes;
  return ((pairs > groups ? pairs : groups) * static_cast<std::size_t>(rows) + 63) / 64 * 64;
}

struct Pair {
  Act at[2];
};

// One row of a block of `stride` rows: pairs (k, k+1), each at distance `stride`.
static void pack_row_pairs(const float* x, int k, int stride, Pair* act) {
  int i = 0;
  if (stride == 1) {
    for (; i + kLanes <= k; i += kLanes) store_act(act[i / 2].at, load(x + i));
  } else {
    Pair rounded[kLanes / 2];
    for (; i + kLanes <= k; i += kLanes) {
      store_act(rounded[0].at, load(x + i));
      SF_UNROLL for (int j = 0; j < kLanes / 2; ++j) {
        act[static_cast<std::int64_t>(i / 2 + j) * stride] = rounded[j];
      }
    }
  }
  for (; i < k; i += 2) {
    act[static_cast<std::int64_t>(i / 2) * stride] = {{to_act(x[i]), to_act(x[i + 1])}};
  }
}

static void pack_pairs(const float* x, std::int64_t ldx, const std::int32_t* index, int rows, int k,
                       void* act) {
  const RowSource source{x, ldx, index};
  for (int first = 0; first < rows; first += kRowBlock) {
    const int block = min_int(kRowBlock, rows - first);
    Pair* base = static_cast<Pair*>(act) + static_cast<std::int64_t>(first) * (k / 2);
    for (int r = 0; r < block; ++r) {
      pack_row_pairs(source_row(source, first + r), k, block, base + r);
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

// Rows packed alone, one after the other, into blocks.
static void gather_pairs(const void* alone, const std::int32_t* index, int rows, int k, void* act) {
  const Pair* from = static_cast<const Pair*>(alone);
  for (int first = 0; first < rows; first += kRowBlock) {
    const int block = min_int(kRowBlock, rows - first);
    Pair* base = static_cast<Pair*>(act) + static_cast<std::int64_t>(first) * (k / 2);
    for (int r = 0; r < block; ++r) {
      const Pair* row = from + static_cast<std::int64_t>(index[first + r]) * (k / 2);
      for (int i = 0; i < k / 2; ++i) base[i * block + r] = row[i];
    }
  }
}

static void gather_fp4(const void* alone, const std::int32_t* index, int rows, int k, void* act) {
  const int groups = k / kFp4Group;
  const std::int64_t row_bytes = static_cast<std::int64_t>(groups) * kFp4RowBytes;
  for (int first = 0; first < rows; first += kRowBlock) {
    const int block = min_int(kRowBlock, rows - first);
    const std::uint8_t* from[kRowBlock];
    for (int r = 0; r < block; ++r) {
      from[r] = static_cast<const std::uint8_t*>(alone) + index[first + r] * row_bytes;
    }
    fp4_gather(from, block, groups, static_cast<std::uint8_t*>(act) + first * row_bytes);
  }
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
