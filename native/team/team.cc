#include "stepfuse/team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "team/topology.h"
#include "team/wait_word.h"

namespace stepfuse {
namespace {

constexpr int kThreadsMax = 256;
constexpr std::int64_t kStopDefault = 30'000'000'000;
// Inside a run members arrive within the imbalance of a stage, while waking a sleeper takes 50 to
// 100 us under a hypervisor: longer than most stages, so that one member's sleep makes the other
// sleep at the next barrier, and so on. A 26 MB model's step of 57 barriers then takes 8.5 ms
// instead of 1.7 ms (2 cores, spins of 50 us and of 1 ms).
constexpr std::int64_t kBarrierSpinMin = 1'000'000;

// Where a member last was; a cache line each, since every barrier writes its own.
struct alignas(64) Place {
  std::atomic<const char*> stage{""};
  std::atomic<std::uint32_t> barriers{0};
};

bool pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

// Moves the calling thread to `cpu` and leaves its affinity mask as it was: threads the caller
// starts later (another library's pool) inherit the mask, so it must not shrink to one processor.
void move_to(int cpu) {
  if (sched_getcpu() == cpu) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof(own), &own) != 0 || !CPU_ISSET(cpu, &own)) return;
  if (pin_to(cpu)) sched_setaffinity(0, sizeof(own), &own);
}

std::vector<int> place_members(const TeamOptions& options) {
  if (options.cpus != nullptr) return {options.cpus, options.cpus + options.threads};
  return choose_cpus(read_topology("/sys", allowed_cpus()), options.threads);
}

bool oversubscribed(const std::vector<int>& cpus) {
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    for (std::size_t j = i + 1; j < cpus.size(); ++j) {
      if (cpus[i] == cpus[j]) return true;
    }
  }
  return false;
}

}  // namespace

struct Team::State {
  int threads;
  bool pin;
  std::vector<int> cpus;
  WaitPolicy idle;     // between runs: no bound
  WaitPolicy barrier;  // inside a run

  WaitWord run_word;      // one more per run (and one for the end)
  WaitWord barrier_word;  // one more per completed barrier
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<bool> ending{false};
  TeamTask task = nullptr;
  void* context = nullptr;
  std::unique_ptr<Place[]> places;
  std::mutex one_caller;
  std::vector<std::thread> workers;

  void arrive(int member, const char* stage);
  [[noreturn]] void stop(int member, const char* stage);
  void work(Team* team, int member);
};

void Team::State::stop(int member, const char* stage) {
  std::fprintf(stderr,
               "stepfuse: member %d of %d waited %.1f s after stage '%s'; not there:", member,
               threads, static_cast<double>(barrier.stop_ns) * 1e-9, stage);
  const std::uint32_t own = places[member].barriers.load(std::memory_order_relaxed);
  for (int i = 0; i < threads; ++i) {
    if (places[i].barriers.load(std::memory_order_relaxed) == own) continue;
    std::fprintf(stderr, " member %d (last seen after '%s')", i,
                 places[i].stage.load(std::memory_order_relaxed));
  }
  std::fprintf(stderr, "\n");
  std::fflush(stderr);
  std::abort();
}

void Team::State::arrive(int member, const char* stage) {
  Place& place = places[member];
  place.stage.store(stage, std::memory_order_relaxed);
  place.barriers.store(place.barriers.load(std::memory_order_relaxed) + 1,
                       std::memory_order_relaxed);
  const std::uint32_t phase = barrier_word.load();
  if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
    arrived.store(0, std::memory_order_relaxed);
    barrier_word.advance();
  } else if (!barrier_word.wait(phase, barrier)) {
    stop(member, stage);
  }
}

void Team::State::work(Team* team, int member) {
  if (pin) pin_to(cpus[member]);
  char name[16];
  std::snprintf(name, sizeof(name), "stepfuse-%d", member);
  pthread_setname_np(pthread_self(), name);
  std::uint32_t seen = 0;
  while (true) {
    run_word.wait(seen, idle);
    ++seen;
    if (ending.load(std::memory_order_acquire)) return;
    task(context, Member{member, threads, team});
    arrive(member, "end of run");
  }
}

void Member::barrier(const char* stage) {
  if (count > 1) team->state_->arrive(index, stage);
}

Team::Team(const TeamOptions& options) : state_(nullptr) {
  if (options.threads < 1 || options.threads > kThreadsMax) {
    throw std::invalid_argument("threads = " + std::to_string(options.threads) +
                                ": a team has 1 to " + std::to_string(kThreadsMax) + " threads");
  }
  auto state = std::make_unique<State>();
  state->threads = options.threads;
  state->pin = options.pin;
  state->cpus = place_members(options);
  const bool crowded = oversubscribed(state->cpus);
  const std::int64_t spin = crowded ? 0 : options.spin_ns;
  state->idle = {spin, 0};
  state->barrier = {spin > 0 ? std::max(spin, kBarrierSpinMin) : 0,
                    options.stop_ns > 0 ? options.stop_ns : kStopDefault};
  state->places = std::make_unique<Place[]>(options.threads);
  state_ = state.release();
  try {
    for (int i = 1; i < options.threads; ++i) {
      state_->workers.emplace_back(&State::work, state_, this, i);
    }
  } catch (...) {
    finish();
    throw;
  }
}

void Team::finish() {
  state_->ending.store(true, std::memory_order_release);
  state_->run_word.advance();
  for (std::thread& worker : state_->workers) worker.join();
  delete state_;
  state_ = nullptr;
}

Team::~Team() { finish(); }

int Team::threads() const { return state_->threads; }

const int* Team::cpus() const { return state_->cpus.data(); }

void Team::run(TeamTask task, void* context) {
  State& state = *state_;
  std::lock_guard<std::mutex> turn(state.one_caller);
  if (state.threads == 1) {
    task(context, Member{0, 1, this});
    return;
  }
  if (state.pin) move_to(state.cpus[0]);
  state.task = task;
  state.context = context;
  state.run_word.advance();
  task(context, Member{0, state.threads, this});
  state.arrive(0, "end of run");
}

}  // namespace stepfuse
