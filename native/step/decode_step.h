// One prepared decode step: built once, run many times.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "step/builder.h"
#include "step/trace.h"
#include "stepfuse/step.h"
#include "stepfuse/team.h"

namespace stepfuse {

// Everything the step is prepared from. `model.layer` is ignored: the layers are `layers`.
struct StepInputs {
  Geometry geometry;
  ModelWeights model;
  std::vector<LayerWeights> layers;
  const KernelTable* kernels;
  Team* team;       // outlives the step
  bool fuse_heads;  // BuildOptions
};

// Caches the step does not own, and how far their indices go.
struct BoundCaches {
  std::vector<LatentView> latent;  // one per MLA layer
  std::vector<StateView> state;    // one per KDA layer
  int pages;                       // of every latent view
  int slots;                       // of every state view
};

// Why a batch cannot run; empty text when it can. `cache`: a slot or page the caches do not have.
struct Refusal {
  std::string text;
  bool cache = false;
};

class DecodeStep {
 public:
  // Lays out memory, builds and checks the program; throws std::exception with the reason.
  explicit DecodeStep(StepInputs inputs);

  // Throws std::invalid_argument when the views do not fit the geometry.
  void bind_caches(BoundCaches caches);
  // The arrays every run reads (StepBatch; `rows` is ignored) and the logits it writes.
  void bind_batch(const StepBatch& batch);

  // Refuses indices out of range and rows of one sequence that are apart or out of order.
  Refusal check_batch(int rows) const;
  // Runs the stages before `until` (stages() for all) on the bound arrays and returns the
  // nanoseconds it took. The batch must have been checked. Neither allocates nor throws.
  std::int64_t run(int rows, int until);

  int stages() const { return static_cast<int>(program_.stages().size()); }
  const Geometry& geometry() const { return inputs_.geometry; }
  const Program& program() const { return program_; }
  const KernelTable& kernels() const { return *inputs_.kernels; }
  bool fused_heads() const { return fused_heads_; }
  Arena& arena() { return arena_; }
  Trace& trace() { return trace_; }

 private:
  static void run_member(void* context, Member member);
  Refusal check_row(int row) const;
  Refusal check_order(int row) const;
  Refusal check_pages(int row) const;

  StepInputs inputs_;
  BoundCaches bound_{};
  CacheViews views_{};
  StepBatch batch_{};
  Arena arena_;
  Program program_;
  Trace trace_;
  Tails tails_;
  Run run_{};
  int until_ = 0;
  bool fused_heads_ = false;
};

}  // namespace stepfuse
