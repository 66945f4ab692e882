// The routed experts: choice, up products and down products over the distinct experts of the step.
#pragma once

#include "step/acts.h"
#include "step/program.h"

namespace stepfuse {

// The step's distinct experts, ascending, each with its rows ascending: built by every member for
// itself in its private region. The arrays follow this header in the region.
struct ExpertTable {
  std::int32_t count;     // distinct experts
  std::int32_t* expert;   // [count]
  std::int32_t* first;    // [count + 1]: rows of expert i are [first[i], first[i + 1])
  std::int32_t* row;      // [pairs]
  float* weight;          // [pairs]
  std::int32_t* ids;      // [rows][k], scratch of the choice
  float* chosen;          // [rows][k]
  std::int32_t* tally;    // [experts]
  std::int32_t gathered;  // place of the expert whose rows are in gather_act, or -1
};

// Bytes of a table for `rows` rows.
std::int64_t expert_table_bytes(int experts, int top_k, int rows);
// Lays the arrays out behind the header at `memory`.
ExpertTable* expert_table_at(void* memory, int top_k, int rows);

struct ExpertsSpec {
  MoeWeights weights;
  int experts, top_k, width, in, max_rows;
  float scaling;
  bool renormalize;
  ExpertFormat format;
  Activation activation;
  Buffer logits;             // [rows][experts]
  Buffer table;              // private, ExpertTable
  Buffer row_act;            // every row's input packed alone
  Buffer gather_act;         // private, the rows of one expert
  Buffer h;                  // [pairs][width]
  Buffer h_act;              // activation of each expert's h, at its first pair
  Buffer out;                // [rows][in], where the weighted sum goes
  bool clear;                // out starts at zero (else the sum is added to what it holds)
  int hidden, shared_width;  // shared expert's down product, added into `prefix`; 0: none
  Buffer shared_act, prefix;
};

class RouteTask final : public Task {
 public:
  explicit RouteTask(ExpertsSpec spec) : spec_(spec) {}
  void run(const Run& run, int member) const override;

 private:
  ExpertsSpec spec_;
};

// Unit = (expert, 32 columns of its width); members take contiguous shares of all of them, the last
// part of each by `tail` (tail.h).
class ExpertsUpTask final : public Task {
 public:
  ExpertsUpTask(const KernelTable* kernels, ExpertsSpec spec, int tail)
      : acts_(kernels), spec_(spec), tail_(tail) {}
  void run(const Run& run, int member) const override;

 private:
  const std::byte* activation(const Run& run, int member, ExpertTable& table, int i) const;
  void multiply(const Run& run, int member, ExpertTable& table, int i, Range units) const;
  void units(const Run& run, int member, std::int64_t begin, std::int64_t end) const;

  Acts acts_;
  ExpertsSpec spec_;
  int tail_;
};

// Whoever owns output tiles goes through all experts for them, so that a row's experts are added in
// ascending order whatever the number of members. The tail is the shared expert's tiles where they
// have an output of their own, else the last tiles.
class ExpertsDownTask final : public Task {
 public:
  ExpertsDownTask(const KernelTable* kernels, ExpertsSpec spec, int tail);
  void run(const Run& run, int member) const override;

 private:
  bool apart() const { return spec_.shared_width > 0 && spec_.out.base != spec_.prefix.base; }
  void tiles(const Run& run, int member, const ExpertTable& table, Range tiles) const;
  void shared(const Run& run, int member, Range tiles) const;
  void routed(const Run& run, int member, const ExpertTable& table, Range tiles) const;

  Acts acts_;
  ExpertsSpec spec_;
  int tail_;
  std::vector<std::int32_t> rows_;
  std::vector<float> ones_;
};

}  // namespace stepfuse
