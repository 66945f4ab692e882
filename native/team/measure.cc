#include "team/measure.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "team/wait_word.h"

namespace stepfuse {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kAhead = 8192;
constexpr int kGroups = 10;
// Looks at the line before the processor is given away (the peer may not be running).
constexpr int kLooksMax = 4096;

std::uint64_t next_random(std::uint64_t* state) {  // splitmix64
  std::uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

struct ReadTest {
  std::uint64_t* data;
  std::int64_t lines;
  int passes;
  std::vector<double> gbps[2];  // plain, prefetched
  std::atomic<std::uint64_t> sink{0};
};

template <bool kPrefetch>
std::uint64_t read_lines(const std::uint64_t* data, std::int64_t lines) {
  std::uint64_t sum[8] = {};
  for (std::int64_t i = 0; i < lines; ++i) {
    const std::uint64_t* line = data + i * (kLine / 8);
    if (kPrefetch) __builtin_prefetch(reinterpret_cast<const char*>(line) + kAhead);
    for (int j = 0; j < 8; ++j) sum[j] ^= line[j];
  }
  std::uint64_t all = 0;
  for (std::uint64_t part : sum) all ^= part;
  return all;
}

void fill_share(std::uint64_t* data, std::int64_t lines, int member) {
  std::uint64_t state = 0x5DEECE66Dull + static_cast<std::uint64_t>(member);
  for (std::int64_t i = 0; i < lines * (kLine / 8); ++i) data[i] = next_random(&state);
}

void read_task(void* context, Member member) {
  ReadTest& test = *static_cast<ReadTest*>(context);
  const std::int64_t first = test.lines * member.index / member.count;
  const std::int64_t lines = test.lines * (member.index + 1) / member.count - first;
  std::uint64_t* share = test.data + first * (kLine / 8);
  fill_share(share, lines, member.index);
  std::uint64_t sum = read_lines<false>(share, lines);
  for (int pass = 0; pass < 2 * test.passes; ++pass) {
    member.barrier("read pass");
    const std::int64_t begin = clock_ns();
    sum ^= pass % 2 == 0 ? read_lines<false>(share, lines) : read_lines<true>(share, lines);
    member.barrier("read pass end");
    const auto ns = static_cast<double>(clock_ns() - begin);
    if (member.index == 0) {
      test.gbps[pass % 2].push_back(static_cast<double>(test.lines * kLine) / ns);
    }
  }
  test.sink.fetch_xor(sum, std::memory_order_relaxed);
}

struct alignas(64) Ball {
  std::atomic<std::uint32_t> count{0};
};

struct PingPongTest {
  Ball ball;
  int rounds;
  std::vector<double> ns;
};

void await(const std::atomic<std::uint32_t>& count, std::uint32_t value) {
  int looks = 0;
  while (count.load(std::memory_order_acquire) != value) {
    if (++looks % kLooksMax == 0) sched_yield();
  }
}

void ping_pong_task(void* context, Member member) {
  PingPongTest& test = *static_cast<PingPongTest*>(context);
  if (member.index > 1) return;
  const auto parity = static_cast<std::uint32_t>(member.index);
  std::uint32_t turn = parity;
  for (int group = 0; group < kGroups; ++group) {
    const std::int64_t begin = clock_ns();
    for (int i = 0; i < test.rounds; ++i) {
      await(test.ball.count, turn);
      test.ball.count.store(turn + 1, std::memory_order_release);
      turn += 2;
    }
    if (member.index == 0) {
      test.ns.push_back(static_cast<double>(clock_ns() - begin) / (2.0 * test.rounds));
    }
  }
}

}  // namespace

std::vector<double> read_bandwidth(Team& team, std::int64_t bytes, int passes) {
  const std::int64_t size = std::max<std::int64_t>(bytes / kLine, team.threads()) * kLine;
  // The prefetch of the last lines reaches past the end; a prefetch never faults.
  void* data = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  madvise(data, static_cast<std::size_t>(size), MADV_HUGEPAGE);
  ReadTest test;
  test.data = static_cast<std::uint64_t*>(data);
  test.lines = size / kLine;
  test.passes = std::max(passes, 1);
  team.run(read_task, &test);
  munmap(data, static_cast<std::size_t>(size));
  const auto best = [](const std::vector<double>& v) {
    return *std::max_element(v.begin(), v.end());
  };
  return best(test.gbps[0]) > best(test.gbps[1]) ? test.gbps[0] : test.gbps[1];
}

double ping_pong(Team& team, int rounds) {
  if (team.threads() < 2) return 0.0;
  PingPongTest test;
  test.rounds = std::max(rounds / kGroups, 1);
  team.run(ping_pong_task, &test);
  std::sort(test.ns.begin(), test.ns.end());
  return test.ns[test.ns.size() / 2];
}

}  // namespace stepfuse
