#include "team/wait_word.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace stepfuse {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A word that changes soon after the first looks is common even where spinning is not allowed.
constexpr int kYields = 16;
// Looks at the word between two looks at the clock.
constexpr int kLooks = 32;

long futex(std::atomic<std::uint32_t>* word, int op, std::uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), op, value, limit, nullptr, 0);
}

}  // namespace

std::int64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

void WaitWord::advance() {
  word_.fetch_add(1, std::memory_order_seq_cst);
  // A sleeper counts itself before it looks at the word for the last time, so one of the two sees
  // the other (both orders are sequentially consistent).
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    futex(&word_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr);
  }
}

bool WaitWord::spin(std::uint32_t old, std::int64_t spin_ns) const {
  if (spin_ns <= 0) {
    for (int i = 0; i < kYields; ++i) {
      if (load() != old) return true;
      sched_yield();
    }
    return load() != old;
  }
  const std::int64_t until = clock_ns() + spin_ns;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (load() != old) return true;
      cpu_relax();
    }
  } while (clock_ns() < until);
  return load() != old;
}

bool WaitWord::sleep(std::uint32_t old, std::int64_t stop_ns) {
  // Slept time is counted in slices of at most a second, so that a process that was stopped or a
  // machine that was suspended for a minute does not look like a member that hangs.
  std::int64_t slept = 0;
  while (load() == old) {
    if (stop_ns > 0 && slept >= stop_ns) return false;
    std::int64_t slice = kSecond;
    if (stop_ns > 0 && stop_ns - slept < slice) slice = stop_ns - slept;
    const timespec limit{slice / kSecond, slice % kSecond};
    const std::int64_t begin = clock_ns();
    futex(&word_, FUTEX_WAIT_PRIVATE, old, &limit);
    const std::int64_t passed = clock_ns() - begin;
    slept += passed < slice ? passed : slice;
  }
  return true;
}

bool WaitWord::wait(std::uint32_t old, const WaitPolicy& policy) {
  if (spin(old, policy.spin_ns)) return true;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  const bool woken = sleep(old, policy.stop_ns);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return woken;
}

}  // namespace stepfuse
