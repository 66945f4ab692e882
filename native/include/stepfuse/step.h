// What a step reads from its caller: one batch, and caches it does not own.
#pragma once

#include "stepfuse/geometry.h"

namespace stepfuse {

// Latent KV of one MLA layer. Page p of the layer starts at base + p * page_bytes.
struct LatentView {
  std::uint8_t* base;
  std::int64_t page_bytes, token_bytes;
  int page_tokens;
  KvDtype dtype;
};

// KDA state and conv window of one KDA layer; slot s starts at base + s * stride (elements).
struct StateView {
  float* state;  // [slot][heads][dim/32][dim (k)][32 (v)]
  std::int64_t state_stride;
  bf16_t* conv;  // [slot][3 past (oldest first)][3 (q,k,v)][heads * dim]
  std::int64_t conv_stride;
};

struct CacheViews {
  const LatentView* latent;  // one per MLA layer, in layer order
  const StateView* state;    // one per KDA layer, in layer order
  int latent_count, state_count;
};

// Filled by the caller before each run; arrays are the caller's and stay untouched. Rows of one
// sequence are adjacent and in token order.
struct StepBatch {
  int rows;
  const std::int32_t* token;     // [rows]
  const std::int64_t* position;  // [rows], tokens of the sequence already cached before this row
  const std::int32_t* slot;      // [rows]
  const std::int32_t* pages;     // [rows][pages_stride]: the row's page table
  std::int64_t pages_stride;
  float* logits;  // [rows][vocab], written
};

}  // namespace stepfuse
