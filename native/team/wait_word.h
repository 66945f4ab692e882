// A counter that threads wait on: a bounded spin, then the kernel.
#pragma once

#include <atomic>
#include <cstdint>

namespace stepfuse {

struct WaitPolicy {
  std::int64_t spin_ns;  // 0: give the processor away at once
  std::int64_t stop_ns;  // fail-stop bound, 0: wait for ever
};

class alignas(64) WaitWord {
 public:
  std::uint32_t load() const { return word_.load(std::memory_order_acquire); }
  // Adds one and wakes whoever sleeps.
  void advance();
  // Returns true when the word no longer is `old`, false when the stop bound has passed.
  bool wait(std::uint32_t old, const WaitPolicy& policy);

 private:
  bool spin(std::uint32_t old, std::int64_t spin_ns) const;
  bool sleep(std::uint32_t old, std::int64_t stop_ns);

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

std::int64_t clock_ns();
void cpu_relax();

}  // namespace stepfuse
