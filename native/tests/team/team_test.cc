// The team is live, right and bounded with any number of threads on any number of processors.
#include "stepfuse/team.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "team/measure.h"
#include "team/wait_word.h"
#include "tests/check.h"

namespace {

using stepfuse::Member;
using stepfuse::Team;
using stepfuse::TeamOptions;

TeamOptions options(int threads) { return {threads, nullptr, true, 50'000, 20'000'000'000}; }

// Every member writes its cell, passes a barrier, and reads all cells of the previous round: any
// missing synchronisation is a wrong sum (and a race under ThreadSanitizer).
struct Rounds {
  int rounds;
  std::vector<int> cells[2];
  std::atomic<int> wrong{0};
};

void round_task(void* context, Member member) {
  Rounds& test = *static_cast<Rounds*>(context);
  for (int r = 0; r < test.rounds; ++r) {
    std::vector<int>& cells = test.cells[r % 2];
    cells[member.index] = r + member.index;
    member.barrier("round");
    int sum = 0;
    for (int cell : cells) sum += cell;
    if (sum != member.count * r + member.count * (member.count - 1) / 2) test.wrong.fetch_add(1);
  }
}

void check_rounds(int threads, int rounds, int runs) {
  Team team(options(threads));
  CHECK(team.threads() == threads);
  Rounds test;
  test.rounds = rounds;
  for (int run = 0; run < runs; ++run) {
    for (auto& cells : test.cells) cells.assign(threads, -1);
    team.run(round_task, &test);
    for (int i = 0; i < threads; ++i) CHECK(test.cells[(rounds - 1) % 2][i] == rounds - 1 + i);
  }
  CHECK(test.wrong.load() == 0);
}

void check_wake_after_sleep() {
  Team team(options(2));
  Rounds test;
  test.rounds = 3;
  for (int run = 0; run < 5; ++run) {
    for (auto& cells : test.cells) cells.assign(2, -1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    team.run(round_task, &test);
  }
  CHECK(test.wrong.load() == 0);
}

// Two callers at once: runs never overlap.
struct Exclusive {
  std::atomic<int> inside{0};
  std::atomic<int> overlaps{0};
  std::atomic<int> runs{0};
};

void exclusive_task(void* context, Member member) {
  Exclusive& test = *static_cast<Exclusive*>(context);
  if (member.index == 0 && test.inside.fetch_add(1) != 0) test.overlaps.fetch_add(1);
  member.barrier("inside");
  if (member.index == 0) {
    test.inside.fetch_sub(1);
    test.runs.fetch_add(1);
  }
}

void check_two_callers() {
  Team team(options(3));
  Exclusive test;
  const auto caller = [&] {
    for (int i = 0; i < 50; ++i) team.run(exclusive_task, &test);
  };
  std::thread other(caller);
  caller();
  other.join();
  CHECK(test.overlaps.load() == 0);
  CHECK(test.runs.load() == 100);
}

#if !defined(__SANITIZE_THREAD__)  // it cannot follow a fork of a threaded process

void hang_task(void*, Member member) {
  member.barrier("first stage");
  if (member.index == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
  member.barrier("second stage");
}

// A member that never arrives ends the process within the bound, with a message that names the
// stage and the member.
void check_fail_stop() {
  int pipe_ends[2];
  CHECK(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    TeamOptions bounded = options(3);
    bounded.stop_ns = 200'000'000;
    Team team(bounded);
    team.run(hang_task, nullptr);
    _exit(0);
  }
  close(pipe_ends[1]);
  const std::int64_t begin = stepfuse::clock_ns();
  int status = 0;
  waitpid(child, &status, 0);
  char text[1024] = {};
  CHECK(read(pipe_ends[0], text, sizeof(text) - 1) > 0);
  close(pipe_ends[0]);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  CHECK(stepfuse::clock_ns() - begin < 20'000'000'000);
  CHECK(std::strstr(text, "after stage 'second stage'") != nullptr);
  CHECK(std::strstr(text, "member 1 (last seen after 'first stage')") != nullptr);
}

#else
void check_fail_stop() {}
#endif

void check_refusals() {
  for (int threads : {0, -1, 257}) {
    bool refused = false;
    try {
      Team team(options(threads));
    } catch (const std::invalid_argument& error) {
      refused = std::string(error.what()).find(std::to_string(threads)) != std::string::npos;
    }
    CHECK(refused);
  }
}

void check_measures() {
  Team team(options(2));
  const std::vector<double> gbps = stepfuse::read_bandwidth(team, 8 << 20, 3);
  CHECK(gbps.size() == 3);
  for (double value : gbps) CHECK(value > 0.01 && value < 10000.0);
  const double ns = stepfuse::ping_pong(team, 1000);
  CHECK(ns > 1.0 && ns < 1e8);
  Team alone(options(1));
  CHECK(stepfuse::ping_pong(alone, 1000) == 0.0);
  CHECK(stepfuse::read_bandwidth(alone, 1, 1).size() == 1);
}

}  // namespace

int main() {
  const std::int64_t begin = stepfuse::clock_ns();
  for (int threads : {1, 2, 4, 8}) check_rounds(threads, 200, 20);
  for (int threads : {16, 64}) check_rounds(threads, 20, 5);
  check_wake_after_sleep();
  check_two_callers();
  check_refusals();
  check_measures();
  check_fail_stop();
  CHECK(stepfuse::clock_ns() - begin < 60'000'000'000);
  return stepfuse::test::report();
}
