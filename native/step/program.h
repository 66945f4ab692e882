// A step as a static list of stages that say what they read and write, checked before it runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "step/arena.h"
#include "step/split.h"
#include "step/tail.h"
#include "stepfuse/kernels.h"
#include "stepfuse/step.h"

namespace stepfuse {

// What a run gives its tasks.
struct Run {
  const KernelTable* kernels;
  const StepBatch* batch;
  const CacheViews* caches;
  int rows;
  int members;
  Tails* tails;
};

// The work of one stage; every member calls it with its index. It neither allocates nor throws.
class Task {
 public:
  virtual ~Task() = default;
  virtual void run(const Run& run, int member) const = 0;
};

// How a stage's members touch a shared region: any of it, or only a share of their own. Two shares
// are the same when their keys are equal (and then no barrier is needed between their users).
// Private regions ignore it.
struct Use {
  static constexpr int kWhole = -1;
  Region region;
  int share;  // kWhole or a key from Program::new_share()
};

struct Stage {
  std::string name;
  int layer;  // -1 outside the layers
  std::vector<Use> reads;
  std::vector<Use> writes;
  std::vector<Split> splits;  // each must cover its units exactly once (or be replicated)
  bool barrier;               // every member waits for all before the next stage
  int tail;                   // number of its tail (tail.h), -1 without
  std::unique_ptr<Task> task;
};

class Program {
 public:
  // Throws std::logic_error naming stage and region when a region is read before a stage wrote it
  // (external regions in `inputs` count as written), when a stage touches what an earlier stage
  // without a barrier between them writes or reads in another share, when members of one stage
  // collide, when a tail stage is not between barriers, when a split does not cover its units
  // exactly once, when an output is never written, or when a region is declared and never used.
  void check(const Arena& arena, int members, const std::vector<Region>& inputs,
             const std::vector<Region>& outputs) const;

  int new_share() { return shares_++; }
  int new_tail() { return tails_++; }
  Stage& add(Stage stage);
  const std::vector<Stage>& stages() const { return stages_; }
  int barriers() const;

 private:
  std::vector<Stage> stages_;
  int shares_ = 0;
  int tails_ = 0;
};

}  // namespace stepfuse
