#include "step/decode_step.h"

#include <stdexcept>

#include "team/wait_word.h"

namespace stepfuse {
namespace {

std::string out_of_range(const char* what, int row, std::int64_t value, std::int64_t end) {
  return "row " + std::to_string(row) + ": " + what + " " + std::to_string(value) +
         " is not in [0, " + std::to_string(end) + ")";
}

}  // namespace

DecodeStep::DecodeStep(StepInputs inputs) : inputs_(std::move(inputs)) {
  ModelWeights model = inputs_.model;
  model.layer = inputs_.layers.data();
  const int members = inputs_.team->threads();
  Builder builder(inputs_.geometry, model, inputs_.kernels, {members, inputs_.fuse_heads}, &arena_,
                  &program_);
  builder.declare();
  arena_.allocate(members);
  arena_.touch(*inputs_.team);
  builder.build();
  tails_.prepare(members);
  fused_heads_ = builder.fused_heads();
}

void DecodeStep::bind_caches(BoundCaches caches) {
  std::size_t mla = 0;
  for (const LayerWeights& layer : inputs_.layers) mla += layer.is_mla ? 1 : 0;
  const std::size_t kda = inputs_.layers.size() - mla;
  if (caches.latent.size() != mla || caches.state.size() != kda) {
    throw std::invalid_argument("caches: " + std::to_string(caches.latent.size()) + " latent and " +
                                std::to_string(caches.state.size()) + " state views for " +
                                std::to_string(mla) + " MLA and " + std::to_string(kda) +
                                " KDA layers; give one per layer");
  }
  bound_ = std::move(caches);
  views_ = {bound_.latent.data(), bound_.state.data(), static_cast<int>(mla),
            static_cast<int>(kda)};
}

void DecodeStep::bind_batch(const StepBatch& batch) { batch_ = batch; }

Refusal DecodeStep::check_pages(int row) const {
  const std::int64_t position = batch_.position[row];
  const std::int64_t last = position / bound_.latent[0].page_tokens;
  if (last >= batch_.pages_stride) {
    return {out_of_range("page table entry", row, last, batch_.pages_stride), true};
  }
  const std::int32_t* pages = batch_.pages + row * batch_.pages_stride;
  for (std::int64_t i = 0; i <= last; ++i) {
    if (pages[i] >= 0 && pages[i] < bound_.pages) continue;
    return {out_of_range("page", row, pages[i], bound_.pages), true};
  }
  return {};
}

// A row of a slot that came up before continues the row just before it, by one token.
Refusal DecodeStep::check_order(int row) const {
  const std::int32_t slot = batch_.slot[row];
  for (int before = row - 1; before >= 0; --before) {
    if (batch_.slot[before] != slot) continue;
    if (before == row - 1 && batch_.position[before] + 1 == batch_.position[row]) return {};
    return {"row " + std::to_string(row) + ": rows of slot " + std::to_string(slot) +
            " are not adjacent and in token order"};
  }
  return {};
}

Refusal DecodeStep::check_row(int row) const {
  const std::int32_t token = batch_.token[row];
  if (token < 0 || token >= inputs_.geometry.vocab) {
    return {out_of_range("token", row, token, inputs_.geometry.vocab)};
  }
  const std::int32_t slot = batch_.slot[row];
  if (!bound_.state.empty() && (slot < 0 || slot >= bound_.slots)) {
    return {out_of_range("slot", row, slot, bound_.slots), true};
  }
  const std::int64_t position = batch_.position[row];
  if (position < 0) return {out_of_range("position", row, position, INT32_MAX)};
  Refusal refusal = check_order(row);
  if (refusal.text.empty() && !bound_.latent.empty()) refusal = check_pages(row);
  return refusal;
}

Refusal DecodeStep::check_batch(int rows) const {
  if (batch_.token == nullptr || bound_.latent.size() + bound_.state.size() == 0) {
    return {"batch arrays and caches are not bound"};
  }
  if (rows < 1 || rows > inputs_.geometry.max_rows) {
    return {std::to_string(rows) + " rows for a step prepared for 1 to " +
            std::to_string(inputs_.geometry.max_rows)};
  }
  Refusal refusal;
  for (int row = 0; row < rows && refusal.text.empty(); ++row) refusal = check_row(row);
  return refusal;
}

void DecodeStep::run_member(void* context, Member member) {
  DecodeStep& step = *static_cast<DecodeStep*>(context);
  const std::vector<Stage>& stages = step.program_.stages();
  const bool traced = step.trace_.enabled();
  step.tails_.clear(member.index);
  for (int i = 0; i < step.until_; ++i) {
    if (traced) step.trace_.entry(i, member.index).begin_ns = clock_ns();
    stages[i].task->run(step.run_, member.index);
    if (traced) step.trace_.entry(i, member.index).end_ns = clock_ns();
    if (stages[i].barrier) member.barrier(stages[i].name.c_str());
  }
}

std::int64_t DecodeStep::run(int rows, int until) {
  batch_.rows = rows;
  until_ = until;
  run_ = {inputs_.kernels, &batch_, &views_, rows, inputs_.team->threads(), &tails_};
  const std::int64_t begin = clock_ns();
  inputs_.team->run(run_member, this);
  return clock_ns() - begin;
}

}  // namespace stepfuse
