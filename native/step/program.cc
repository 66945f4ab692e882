#include "step/program.h"

#include <algorithm>
#include <stdexcept>

namespace stepfuse {
namespace {

struct Checker {
  const Arena& arena;
  const std::vector<Stage>& stages;
  int members;

  [[noreturn]] void refuse(const Stage& stage, Region region, const std::string& why) const {
    throw std::logic_error("stage '" + stage.name + "', region '" + arena.info(region).name +
                           "': " + why);
  }

  bool collide(const Use& a, const Use& b) const {
    if (a.region != b.region || arena.info(a.region).sharing == Sharing::kPrivate) return false;
    return a.share == Use::kWhole || a.share != b.share;
  }

  void check_pair(const Stage& earlier, const std::vector<Use>& before, const Stage& stage,
                  const std::vector<Use>& after) const {
    for (const Use& a : before) {
      for (const Use& b : after) {
        if (!collide(a, b)) continue;
        refuse(stage, b.region,
               &earlier == &stage ? "its members collide (whole and written)"
                                  : "no barrier since stage '" + earlier.name + "'");
      }
    }
  }

  void check_races() const {
    std::size_t open = 0;  // first stage after the last barrier
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (std::size_t j = open; j <= i; ++j) {
        check_pair(stages[j], stages[j].writes, stages[i], stages[i].reads);
        check_pair(stages[j], stages[j].writes, stages[i], stages[i].writes);
        check_pair(stages[j], stages[j].reads, stages[i], stages[i].writes);
      }
      if (stages[i].barrier) open = i + 1;
    }
  }

  // Tails go round by stages that all members have left (tail.h).
  void check_tails() const {
    int next = 0;
    bool alone = false;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const Stage& stage = stages[i];
      const bool closed = stage.barrier || i + 1 == stages.size();
      if (stage.tail >= 0 && !(alone && closed && stage.tail == next++)) {
        throw std::logic_error("stage '" + stage.name + "': its tail " +
                               std::to_string(stage.tail) +
                               " is not the next one, or no barrier comes before or after it");
      }
      alone = alone || stage.barrier;
    }
  }

  void check_splits(const Stage& stage) const {
    for (const Split& split : stage.splits) {
      bool covers = static_cast<int>(split.member.size()) == members;
      int next = 0;
      for (const Range& range : split.member) {
        covers = covers && range.begin == next && range.begin <= range.end;
        next = split.replicated ? 0 : range.end;
        if (split.replicated) covers = covers && range.end == split.units;
      }
      if (!split.replicated) covers = covers && next == split.units;
      if (covers) continue;
      throw std::logic_error("stage '" + stage.name + "': the members' shares do not cover " +
                             std::to_string(split.units) + " units exactly once");
    }
  }

  void check_order(std::vector<bool> written, const std::vector<Region>& outputs) const {
    std::vector<bool> used(written.size(), false);
    std::vector<bool> stored(written.size(), false);
    for (const Stage& stage : stages) {
      for (const Use& use : stage.reads) {
        if (!written[use.region]) refuse(stage, use.region, "read before any stage wrote it");
        used[use.region] = true;
      }
      for (const Use& use : stage.writes)
        written[use.region] = used[use.region] = stored[use.region] = true;
    }
    for (Region region : outputs) {
      if (!stored[region]) refuse(stages.back(), region, "an output that no stage writes");
    }
    for (Region region = 0; region < arena.count(); ++region) {
      if (!used[region]) refuse(stages.back(), region, "declared and never used");
    }
  }
};

}  // namespace

Stage& Program::add(Stage stage) {
  stages_.push_back(std::move(stage));
  return stages_.back();
}

int Program::barriers() const {
  return static_cast<int>(
      std::count_if(stages_.begin(), stages_.end(), [](const Stage& s) { return s.barrier; }));
}

void Program::check(const Arena& arena, int members, const std::vector<Region>& inputs,
                    const std::vector<Region>& outputs) const {
  if (stages_.empty()) throw std::logic_error("a program without stages");
  const Checker checker{arena, stages_, members};
  std::vector<bool> written(arena.count(), false);
  for (Region region : inputs) written[region] = true;
  checker.check_order(std::move(written), outputs);
  for (const Stage& stage : stages_) checker.check_splits(stage);
  checker.check_races();
  checker.check_tails();
}

}  // namespace stepfuse
