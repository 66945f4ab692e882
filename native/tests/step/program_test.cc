// Deliberately broken programs are refused, each for its own reason; the right one passes.
#include "step/program.h"

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>

#include "stepfuse/team.h"
#include "tests/check.h"

namespace {

using namespace stepfuse;

constexpr int kMembers = 3;

class Nothing final : public Task {
 public:
  void run(const Run&, int) const override {}
};

// x (input) -> a --barrier--> b -> out, with c private in between.
struct Example {
  Arena arena;
  Program program;
  Region x, a, b, c, out;
  int own, other;

  Example() {
    x = arena.add("x", Sharing::kExternal, Element::kFp32, {4});
    a = arena.add("a", Sharing::kShared, Element::kFp32, {4});
    b = arena.add("b", Sharing::kShared, Element::kFp32, {4});
    c = arena.add("c", Sharing::kPrivate, Element::kFp32, {4});
    out = arena.add("out", Sharing::kExternal, Element::kFp32, {4});
    own = program.new_share();
    other = program.new_share();
  }
  void stage(const char* name, std::vector<Use> reads, std::vector<Use> writes, bool barrier,
             std::vector<Split> splits = {}, int tail = -1) {
    program.add({name, 0, std::move(reads), std::move(writes), std::move(splits), barrier, tail,
                 std::make_unique<Nothing>()});
  }
  void head() { stage("first", {{x, Use::kWhole}}, {{a, own}}, true, {split_even(7, kMembers)}); }
  void tail() {
    stage("second", {{a, Use::kWhole}}, {{c, Use::kWhole}, {b, own}}, false);
    stage("third", {{c, Use::kWhole}, {b, own}}, {{out, own}}, false);
  }
  std::string verdict() {
    try {
      program.check(arena, kMembers, {x}, {out});
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return "";
  }
};

void refused(const char* because, const std::function<void(Example&)>& build) {
  Example example;
  build(example);
  const std::string verdict = example.verdict();
  if (verdict.find(because) == std::string::npos) {
    std::fprintf(stderr, "wanted '%s', got '%s'\n", because, verdict.c_str());
  }
  CHECK(verdict.find(because) != std::string::npos);
}

void check_right_program() {
  Example example;
  example.head();
  example.tail();
  CHECK(example.verdict().empty());
  CHECK(example.program.barriers() == 1);
}

void check_broken_programs() {
  refused("stage 'second', region 'a': read before any stage wrote it",
          [](Example& e) { e.tail(); });
  refused("stage 'second', region 'a': no barrier since stage 'first'", [](Example& e) {
    e.stage("first", {{e.x, Use::kWhole}}, {{e.a, e.own}}, false);
    e.tail();
  });
  refused("region 'b': no barrier since stage 'second'", [](Example& e) {  // another share
    e.head();
    e.stage("second", {{e.a, Use::kWhole}}, {{e.c, Use::kWhole}, {e.b, e.own}}, false);
    e.stage("third", {{e.c, Use::kWhole}, {e.b, e.other}}, {{e.out, e.own}}, false);
  });
  refused("stage 'fourth', region 'a': no barrier since stage 'second'", [](Example& e) {
    e.head();
    e.tail();
    e.stage("fourth", {{e.c, Use::kWhole}}, {{e.a, e.own}}, false);  // written while others read
  });
  refused("stage 'fourth', region 'b': no barrier since stage 'second'", [](Example& e) {
    e.head();
    e.tail();
    e.stage("fourth", {{e.c, Use::kWhole}}, {{e.b, e.other}}, false);  // written twice
  });
  refused("stage 'first', region 'a': its members collide", [](Example& e) {
    e.stage("first", {{e.x, Use::kWhole}}, {{e.a, Use::kWhole}}, true);
    e.tail();
  });
  refused("stage 'again', region 'a': its members collide", [](Example& e) {
    e.head();
    e.stage("again", {{e.a, Use::kWhole}}, {{e.a, e.own}}, true);
    e.tail();
  });
  refused("region 'out': an output that no stage writes", [](Example& e) {
    e.head();
    e.stage("second", {{e.a, Use::kWhole}}, {{e.c, Use::kWhole}, {e.b, e.own}}, false);
  });
  refused("region 'b': declared and never used", [](Example& e) {
    e.head();
    e.stage("second", {{e.a, Use::kWhole}}, {{e.c, Use::kWhole}}, false);
    e.stage("third", {{e.c, Use::kWhole}}, {{e.out, e.own}}, false);
  });
  refused("without stages", [](Example&) {});
}

void check_broken_splits() {
  const auto with = [](Split split) {
    return [split](Example& e) {
      e.stage("first", {{e.x, Use::kWhole}}, {{e.a, e.own}}, true, {split});
      e.tail();
    };
  };
  const char* why = "do not cover 7 units exactly once";
  refused(why, with({7, false, {{0, 2}, {2, 4}, {4, 6}}}));  // a tail is left out
  refused(why, with({7, false, {{0, 3}, {2, 4}, {4, 7}}}));  // an overlap
  refused(why, with({7, false, {{0, 2}, {3, 4}, {4, 7}}}));  // a gap
  refused(why, with({7, false, {{0, 4}, {4, 7}}}));          // a member without a share
  refused(why, with({7, true, {{0, 7}, {0, 7}, {0, 6}}}));   // replicated, but not by all
}

void check_broken_tails() {
  const auto numbered = [](int first, int second, bool barrier) {
    return [=](Example& e) {
      e.head();
      e.stage("one", {{e.a, Use::kWhole}}, {{e.b, e.own}}, barrier, {}, first);
      e.stage("two", {{e.b, e.own}}, {{e.c, Use::kWhole}, {e.out, e.own}}, false, {}, second);
    };
  };
  refused("stage 'one': its tail 1 is not the next one", numbered(1, 2, true));
  refused("stage 'two': its tail 0 is not the next one", numbered(0, 0, true));
  refused("stage 'one': its tail 0", numbered(0, 1, false));  // no barrier behind it
  refused("stage 'first': its tail 0", [](Example& e) {       // none before it
    e.stage("first", {{e.x, Use::kWhole}}, {{e.a, e.own}}, true, {}, 0);
    e.tail();
  });
}

// Every chunk is taken once, whoever is slow, run after run.
void check_tails() {
  constexpr int kThreads = 3, kStages = 7, kRuns = 200;
  Tails tails;
  tails.prepare(kThreads);
  struct Shared {
    Tails* tails;
    std::atomic<int> done[kStages];
    std::atomic<bool> once{true};
  } shared{&tails, {}};
  const auto count = [](int owner) { return 5 * owner; };
  Team team({kThreads, nullptr, false, 0, 0});
  const auto task = [](void* context, Member member) {
    Shared& s = *static_cast<Shared*>(context);
    s.tails->clear(member.index);
    member.barrier("clear");
    for (int stage = 0; stage < kStages; ++stage) {
      bool seen[kThreads][5 * kThreads] = {};
      s.tails->take(
          stage, member.index, [](int owner) { return 5 * owner; },
          [&](int owner, int i) {
            bool& mine = seen[owner][i];
            if (mine) s.once = false;
            mine = true;
            s.done[stage].fetch_add(1 << (owner == 2 ? 8 : 0));
          });
      member.barrier("stage");
    }
  };
  for (int run = 0; run < kRuns; ++run) team.run(task, &shared);
  for (const std::atomic<int>& done : shared.done) {
    CHECK(done == kRuns * (count(1) + (count(2) << 8)));
  }
  CHECK(shared.once);
}

// Any bytes, any members: the shares cover, ascend, and no share is more than a unit off.
void check_byte_splits() {
  const std::vector<std::vector<Job>> cases = {{{112, 3584}, {224, 12288}},
                                               {{1, 64}, {1, 64}},
                                               {{3, 100}, {0, 7}, {5, 1}},
                                               {{5, 0}, {9, 10}}};
  for (const auto& jobs : cases) {
    for (int members : {1, 2, 3, 5, 16, 64}) {
      const std::vector<Split> splits = split_bytes(jobs, members);
      std::int64_t total = 0, most = 0;
      for (const Job& job : jobs) {
        total += job.units * job.unit_bytes;
        most = std::max(most, job.unit_bytes);
      }
      for (std::size_t j = 0; j < jobs.size(); ++j) {
        int next = 0;
        for (const Range& range : splits[j].member) {
          CHECK(range.begin == next && range.end >= next);
          next = range.end;
        }
        CHECK(next == jobs[j].units);
      }
      for (int m = 0; m < members; ++m) {
        std::int64_t share = 0;
        for (std::size_t j = 0; j < jobs.size(); ++j) {
          const Range& range = splits[j].member[m];
          share += (range.end - range.begin) * jobs[j].unit_bytes;
        }
        CHECK(std::abs(share - total / members) <= 2 * most);
      }
    }
  }
}

void check_arena() {
  Arena arena;
  const Region shared = arena.add("s", Sharing::kShared, Element::kFp32, {3});
  const Region own = arena.add("p", Sharing::kPrivate, Element::kFp32, {5});
  arena.allocate(kMembers);
  arena.buffer(shared).fp32(0)[2] = 1.0f;
  for (int m = 0; m < kMembers; ++m) {
    for (int i = 0; i < 5; ++i) arena.buffer(own).fp32(m)[i] = static_cast<float>(m);
  }
  CHECK(arena.buffer(shared).fp32(1) == arena.buffer(shared).fp32(0));
  CHECK(arena.buffer(own).fp32(0)[4] == 0.0f && arena.buffer(own).fp32(2)[0] == 2.0f);
  CHECK(arena.buffer(shared).fp32(2)[2] == 1.0f);
  bool refused_late = false;
  try {
    arena.add("late", Sharing::kShared, Element::kFp32, {1});
  } catch (const std::logic_error&) {
    refused_late = true;
  }
  CHECK(refused_late);
  CHECK(arena.find("p") == own && arena.find("q") == -1);
}

}  // namespace

int main() {
  check_right_program();
  check_broken_programs();
  check_broken_splits();
  check_broken_tails();
  check_tails();
  check_byte_splits();
  check_arena();
  return stepfuse::test::report();
}
