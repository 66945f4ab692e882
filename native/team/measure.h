// What the memory and the interconnect give right now, measured with the team that will use them.
#pragma once

#include <cstdint>
#include <vector>

#include "stepfuse/team.h"

namespace stepfuse {

// Gigabytes (1e9) per second of every pass, the faster of two ways to read (with and without a
// software prefetch 8 KiB ahead). The buffer of `bytes` holds random data (pages of equal bytes
// are merged by some hypervisors and read impossibly fast), each member writes and reads its own
// contiguous share, and everything has been read once before the first measured pass.
std::vector<double> read_bandwidth(Team& team, std::int64_t bytes, int passes);

// Nanoseconds a cache line takes from member 0 to member 1 (half a round trip, the median of ten
// groups of `rounds` / 10); 0 for a team of one.
double ping_pong(Team& team, int rounds);

}  // namespace stepfuse
