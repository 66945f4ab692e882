// The end of a stage's work, taken in chunks by whoever is free.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

namespace stepfuse {

// Most of a member's share is its own; the rest are chunks that other members may take once their
// own are done. Two cores that read the same bytes drift apart by about a tenth within a stage.
inline constexpr int kTailPart = 4;  // one part in kTailPart of the share
inline constexpr std::int64_t kTailChunkBytes = 64 << 10;

// Counters of the chunks taken, one per member. Three stages' worth go round: a stage clears those
// of the next one, which nobody has used since the stage before it ended in a barrier.
class Tails {
 public:
  void prepare(int members) {
    members_ = members;
    taken_ = std::make_unique<Taken[]>(std::size_t{kRing} * members);
  }
  // By each member at the start of a run; a barrier follows before the first tail.
  void clear(int member) {
    for (int tail = 0; tail < kRing; ++tail) at(tail, member).store(0, std::memory_order_relaxed);
  }

  // Calls work(owner, i) for chunks i of [0, count(owner)): own ones first, then other members'.
  template <class Count, class Work>
  void take(int tail, int member, Count count, Work work) {
    at(tail + 1, member).store(0, std::memory_order_relaxed);
    const int owners = std::min(members_, 1 + kOthers);
    for (int step = 0; step < owners; ++step) {
      const int owner = (member + step) % members_;
      const int end = count(owner);
      // A look before the claim keeps the line shared once the chunks are gone.
      while (at(tail, owner).load(std::memory_order_relaxed) < end) {
        const int i = at(tail, owner).fetch_add(1, std::memory_order_relaxed);
        if (i < end) work(owner, i);
      }
    }
  }

 private:
  static constexpr int kRing = 3;
  static constexpr int kOthers = 7;  // members whose tails one goes through
  struct alignas(64) Taken {
    std::atomic<int> count{0};
  };
  std::atomic<int>& at(int tail, int member) {
    return taken_[std::size_t(tail % kRing) * members_ + member].count;
  }

  int members_ = 0;
  std::unique_ptr<Taken[]> taken_;
};

}  // namespace stepfuse
