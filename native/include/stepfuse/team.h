// A persistent, pinned team of threads. The caller is member 0; the others sleep between runs.
#pragma once

#include <cstdint>

namespace stepfuse {

class Team;

// What a running member may use. `barrier` returns when every member has called it the same number
// of times; a member that waits longer than the team's stop bound aborts the process with a message
// naming the stage (a wait that never ends is worse than a crash that says where).
struct Member {
  int index;
  int count;
  Team* team;
  // `stage` (static storage) names what was just done, for the message of a wait that never ends.
  void barrier(const char* stage);
};

struct TeamOptions {
  int threads;      // 1..256, the caller included
  const int* cpus;  // one processor per member, or null: chosen among the process's own set
  bool pin;         // workers pinned and the caller moved to its place; false: left alone
  // Spin this long between runs before sleeping (about 50 us), and at least 1 ms at the barriers of
  // a run; 0, or an oversubscribed processor: sleep at once.
  std::int64_t spin_ns;
  std::int64_t stop_ns;  // fail-stop bound of one wait (default 30 s)
};

using TeamTask = void (*)(void* context, Member member);

class Team {
 public:
  explicit Team(const TeamOptions& options);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const;
  const int* cpus() const;  // [threads]
  // Runs `task` on every member and returns when all have finished. Not re-entrant; one caller at
  // a time (a second concurrent caller waits).
  void run(TeamTask task, void* context);

 private:
  void finish();
  struct State;
  State* state_;
  friend struct Member;
};

}  // namespace stepfuse
