// How work is divided among the members before the first run.
#pragma once

#include <cstdint>
#include <vector>

namespace stepfuse {

struct Range {
  int begin;
  int end;
};

// `units` things (tiles, heads) and each member's contiguous share of them. Replicated: every
// member does all of it, in memory of its own.
struct Split {
  int units = 0;
  bool replicated = false;
  std::vector<Range> member;
};

// Shares of near equal size, ascending.
Split split_even(int units, int members);
Split split_replicated(int units, int members);
// The shares of `split`, each unit of it standing for `factor` units.
Split split_scaled(const Split& split, int factor);

struct Job {
  int units;
  std::int64_t unit_bytes;
};

// One contiguous share of the bytes of all jobs, one after the other, per member: the result has a
// split per job. A boundary falls on the unit nearest to it.
std::vector<Split> split_bytes(const std::vector<Job>& jobs, int members);

// The same for two jobs at run time, without allocating: the units of `job` in member's share.
Range share_bytes(const Job* jobs, int count, int job, int member, int members);

}  // namespace stepfuse
