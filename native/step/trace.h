// When each member began and ended each stage of the last run.
#pragma once

#include <cstdint>
#include <memory>

namespace stepfuse {

// Times are CLOCK_MONOTONIC nanoseconds; `end` is before the stage's barrier, so the gap to the
// next `begin` is what the member waited.
struct TraceEntry {
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

// A buffer laid out before the run; each member writes its own part.
class Trace {
 public:
  void prepare(int stages, int members) {
    stages_ = stages;
    entries_ = std::make_unique<TraceEntry[]>(static_cast<std::size_t>(stages) * members);
  }
  void clear() { entries_.reset(); }
  bool enabled() const { return entries_ != nullptr; }
  TraceEntry& entry(int stage, int member) { return entries_[member * stages_ + stage]; }

 private:
  int stages_ = 0;
  std::unique_ptr<TraceEntry[]> entries_;
};

}  // namespace stepfuse
