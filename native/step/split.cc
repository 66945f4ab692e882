#include "step/split.h"

#include <algorithm>

namespace stepfuse {
namespace {

// Units of `job` before the boundary between members `member - 1` and `member`.
int boundary(const Job* jobs, int count, int job, int member, int members) {
  std::int64_t total = 0;
  std::int64_t before = 0;
  for (int i = 0; i < count; ++i) {
    if (i < job) before += jobs[i].units * jobs[i].unit_bytes;
    total += jobs[i].units * jobs[i].unit_bytes;
  }
  if (jobs[job].unit_bytes == 0) return member == 0 ? 0 : jobs[job].units;
  const std::int64_t target = total / members * member + total % members * member / members;
  const std::int64_t unit = jobs[job].unit_bytes;
  const std::int64_t units = (target - before + unit / 2) / unit;
  if (member == members) return jobs[job].units;
  if (member == 0 || target < before) return 0;
  return static_cast<int>(std::clamp<std::int64_t>(units, 0, jobs[job].units));
}

}  // namespace

Split split_even(int units, int members) {
  Split split{units, false, {}};
  for (int m = 0; m < members; ++m) {
    const auto at = [&](std::int64_t i) { return static_cast<int>(units * i / members); };
    split.member.push_back({at(m), at(m + 1)});
  }
  return split;
}

Split split_replicated(int units, int members) {
  return {units, true, std::vector<Range>(members, Range{0, units})};
}

Split split_scaled(const Split& split, int factor) {
  Split scaled{split.units * factor, split.replicated, {}};
  for (const Range& range : split.member) {
    scaled.member.push_back({range.begin * factor, range.end * factor});
  }
  return scaled;
}

Range share_bytes(const Job* jobs, int count, int job, int member, int members) {
  return {boundary(jobs, count, job, member, members),
          boundary(jobs, count, job, member + 1, members)};
}

std::vector<Split> split_bytes(const std::vector<Job>& jobs, int members) {
  std::vector<Split> splits;
  const int count = static_cast<int>(jobs.size());
  for (int job = 0; job < count; ++job) {
    Split split{jobs[job].units, false, {}};
    for (int m = 0; m < members; ++m) {
      split.member.push_back(share_bytes(jobs.data(), count, job, m, members));
    }
    splits.push_back(std::move(split));
  }
  return splits;
}

}  // namespace stepfuse
