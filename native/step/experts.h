// The routed experts: choice, up products and down products over the distinct experts of the step.
#pragma once

#include "step/acts.h"
#include "step/program.h"

namespace stepfuse {

// The step's distinct experts, ascending, each with its rows ascending: built by every member for
// itself in its private region. The arrays follow this header in the region.
struct ExpertTable {
  std::int32_t count;    // distinct experts
  std::int32_t* expert;  // [count]
  std::int32_t* first;   // [count + 1]: rows of expert i are [first[i], first[i + 1])
  std::int32_t* row;     // [pairs]
  float* weight;         // [pairs]
  std::int32_t* ids;     // [rows][k], scratch of the choice
  float* chosen;         // [rows][k]
  std::int32_t* tally;   // [experts]
  std::uint8_t* packed;  // [rows]: this row's activation has been packed
};

// Bytes of a table for `rows` rows.
std::int64_t expert_table_bytes(int experts, int top_k, int rows);
// Lays the arrays out behind the header at `memory`.
ExpertTable* expert_table_at(void* memory, int experts, int top_k, int rows);

struct ExpertsSpec {
  MoeWeights weights;
  int experts, top_k, width, in, max_rows;
  float scaling;
  bool renormalize;
  ExpertFormat format;
  Activation activation;
  Buffer logits;             // [rows][experts]
  Buffer table;              // private, ExpertTable
  Buffer x;                  // [rows][in]
  Buffer row_act;            // private, one activation per row
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

// Task = (expert, 32 columns of its width); members take contiguous shares of all of them.
class ExpertsUpTask final : public Task {
 public:
  ExpertsUpTask(const KernelTable* kernels, ExpertsSpec spec) : acts_(kernels), spec_(spec) {}
  void run(const Run& run, int member) const override;

 private:
  const std::byte* activation(const Run& run, int member, const ExpertTable& table, int i) const;
  void multiply(const Run& run, int member, const ExpertTable& table, int i, Range units) const;

  Acts acts_;
  ExpertsSpec spec_;
};

// Each member goes through all experts for the output tiles it owns, so that a row's experts are
// added in ascending order whatever the number of members.
class ExpertsDownTask final : public Task {
 public:
  ExpertsDownTask(const KernelTable* kernels, ExpertsSpec spec);
  void run(const Run& run, int member) const override;

 private:
  void shared(const Run& run, int member, Range tiles) const;
  void routed(const Run& run, int member, const ExpertTable& table, Range tiles) const;

  Acts acts_;
  ExpertsSpec spec_;
  std::vector<std::int32_t> rows_;
  std::vector<float> ones_;
};

}  // namespace stepfuse
