// Kernels timed as the step calls them: every member streams through its own share of weights that
// do not fit the caches, beside plain reads of the same memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stepfuse/kernels.h"
#include "stepfuse/team.h"

namespace stepfuse {

// One thing to time. `kda`: `in` is the head dim and `out` the heads of a slot; `rows` is ignored.
struct KernelCase {
  enum class Op { kBf16, kGateUp, kFp4, kFp4GateUp, kKda };
  Op op;
  const KernelTable* kernels;
  int rows, in, out;
  std::int64_t bytes;  // to go through, rounded to whole matrices
};

// Of one repeat. `floor_ns`: the same bytes read plainly just before and after (mean); for kda read
// and written in place, as a state must be.
struct KernelTime {
  std::int64_t bytes;
  double ns, floor_ns;
};

class KernelBench {
 public:
  // A block of `bytes` random bytes that are valid as BF16 numbers, nibbles, E8M0 scales and FP32
  // states; throws std::bad_alloc. Each member fills the share it reads.
  KernelBench(Team* team, std::int64_t bytes);
  ~KernelBench();
  KernelBench(const KernelBench&) = delete;
  KernelBench& operator=(const KernelBench&) = delete;

  // Throws std::invalid_argument where the case does not fit the block.
  std::vector<KernelTime> time(const KernelCase& c, int repeats);

 private:
  double floor(const KernelCase& c, std::int64_t begin, std::int64_t bytes);

  Team* team_;
  std::byte* block_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace stepfuse
