// The contract of every kernel: one table of plain functions per ISA level.
//
// Numerics, the same on every level: a product with a BF16 or MXFP4 weight takes its input rounded
// to BF16 (round to nearest even), accumulates in FP32 and returns FP32. A level may hold the
// inputs of an MXFP4 product in fixed point per group of 32 columns: exact for inputs of at least
// 1/64 of the group's largest, else within 2^-15 of it. The router takes its input in FP32.
// Everything else (norms, gates, state, attention scores) is FP32. A row's result depends neither
// on the other rows of the call nor on how tiles are shared among threads: each output's sum runs
// over k in one fixed order whatever `rows` is.
//
// Buffers never alias unless a comment says so. Weight pointers are 64-byte aligned; activations
// and outputs are aligned to 4 bytes. Nothing outside the named outputs is written.
#pragma once

#include "stepfuse/types.h"

namespace stepfuse {

// Packed BF16 matrix [out, in]: tiles [out/32][in/2][32][2], the last tile padded with zero rows.
// `in` is even. Element (n, k) sits at (((n/32) * (in/2) + k/2) * 32 + n%32) * 2 + k%2.
// A gate/up pair is one such matrix whose tile t holds gate rows 16t..16t+15, then up rows
// 16t..16t+15.
//
// Packed MXFP4 matrix [out, in]: nibbles [out/32][in/8][32][4 bytes] (the vendor's four bytes of
// one row: low nibble = even k), scales [out/32][in/32][32] (E8M0 bytes). `in` is a multiple of 32.

// Activations of `rows` rows prepared for a weight format: blocks of kRowBlock rows, each
// [k/2][rows in block][2] (pairs k, k+1) or, for MXFP4, the level's own form. The element is the
// level's own too (BF16 where the level multiplies BF16, else FP32 holding rounded values), so such
// a buffer never leaves its level. Size: KernelTable::act_bytes(k, rows).

// Shared by the matrix products: y[r * ldy + n] for n in the tiles [tile_begin, tile_end) and
// n < out; rows beyond `out` in the last tile are computed and dropped.
struct LinearArgs {
  const bf16_t* weight;  // packed tiles of the whole matrix
  const void* act;       // pack_pairs (or pack_pairs_fp32 for linear_fp32)
  float* y;
  std::int64_t ldy;
  int rows, in, out;
  int tile_begin, tile_end;
};

struct GateUpArgs {  // y[r * ldy + n] = activation(gate_n, up_n), n < width; tile t owns 16 columns
  const bf16_t* weight;
  const void* act;
  float* y;
  std::int64_t ldy;
  int rows, in, width;
  int tile_begin, tile_end;
  Activation activation;
};

struct Fp4Args {  // as LinearArgs on an MXFP4 matrix; act from pack_fp4
  const std::uint8_t* nibbles;
  const std::uint8_t* scales;
  const void* act;
  float* y;
  std::int64_t ldy;
  int rows, in, out;
  int tile_begin, tile_end;
};

struct Fp4GateUpArgs {
  const std::uint8_t* nibbles;
  const std::uint8_t* scales;
  const void* act;
  float* y;
  std::int64_t ldy;
  int rows, in, width;
  int tile_begin, tile_end;
  Activation activation;
};

// One expert's down product added into several rows: for i < rows,
// y[target[i] * ldy + n] += scale[i] * product[i][n], one FMA per element.
struct Scatter {
  const std::int32_t* target;
  const float* scale;
};

// One token of one KDA head group. q, k, v are the raw projections of this token [heads * dim].
// Reads and shifts the conv window, updates the state in place, writes the gated, normalised
// output.
struct KdaArgs {
  const float* q;  // [heads * dim], before convolution
  const float* k;
  const float* v;
  const float* decay;        // [heads * dim], f_b_proj(f_a_proj x), before dt_bias
  const float* beta;         // [heads], before sigmoid
  const float* gate;         // [heads * dim], before sigmoid
  const float* conv_weight;  // [3 (q,k,v)][4 taps][heads * dim], tap 3 multiplies the present input
  const float* a_log;        // [heads]
  const float* dt_bias;      // [heads * dim]
  const float* norm_weight;  // [dim]
  bf16_t* conv_state;  // [3 past (oldest first)][3 (q,k,v)][heads * dim]; inputs rounded to BF16
  float* state;        // [heads][dim/32][dim (k)][32 (v)]
  float* out;          // [heads * dim]
  int heads, dim;
  int head_begin,
      head_end;  // the part this call computes; conv_state of these heads only is touched
  float
      gate_lower_bound;  // K3 form when < 0: g = bound * sigmoid(exp(A) z); 0: -exp(A) softplus(z)
  float norm_eps;
};

// Absorbed latent attention of one row over a range of its cached tokens, for heads
// [head_begin, head_end): writes per head the running maximum, the sum of exponentials and the
// unnormalised latent sum, so that ranges can be merged in order (mla_merge).
struct MlaArgs {
  const float* q_latent;  // [heads][latent], q already multiplied by W_UK
  const float* q_pe;      // [heads][q_pe_stride], the first `rope` are used
  std::int64_t q_pe_stride;
  const std::uint8_t* kv_base;  // page p starts at kv_base + p * page_bytes
  std::int64_t page_bytes, token_bytes;
  const std::int32_t* pages;  // page of cached token t is pages[t / page_tokens]
  int page_tokens;
  KvDtype dtype;
  int token_begin, token_end;
  int latent, rope;
  int head_begin, head_end;
  float scale;
  float* max;  // [heads]; -inf for an empty range
  float* sum;  // [heads]
  float* acc;  // [heads][latent]
};

// A BF16 token record is [latent + rope] BF16. An FP8 record is [latent + rope] e4m3fn bytes, then
// two FP32 scales (latent, rope), each a power of two, so that decoding to BF16 is exact.
struct LatentWriteArgs {
  const float* latent;  // [latent], already normalised
  const float* pe;      // [rope]
  std::uint8_t* record;
  int latent_dim, rope;
  KvDtype dtype;
};

struct RouterArgs {
  const float* logits;  // [experts]
  const float* bias;    // [experts], selection only
  std::int32_t* ids;    // [k], ascending expert index
  float* weights;       // [k], in the order of ids
  int experts, k;
  float scaling;
  bool renormalize;
};

struct AttnResArgs {
  const float* const* sources;  // `count` raw source rows [n]; out may alias any of them
  int count, n;
  const bf16_t* norm_weight;
  const bf16_t* proj_weight;
  float eps;
  float* out;
};

struct KernelTable {
  Level level;
  const char* name;

  std::size_t (*act_bytes)(int k, int rows);
  int pair_bytes;  // one row's pair of columns in the form of pack_pairs
  // MXFP4 activations: bytes of one row's kFp4Group columns. Columns [32a, 32b) of a block of
  // `rows` rows are contiguous from a * rows * fp4_row_bytes, so members can fill a block together.
  int fp4_row_bytes;
  // x: rows of FP32 at stride ldx. Rows are gathered by `index` when it is not null.
  void (*pack_pairs)(const float* x, std::int64_t ldx, const std::int32_t* index, int rows, int k,
                     void* act);
  void (*pack_pairs_fp32)(const float* x, std::int64_t ldx, const std::int32_t* index, int rows,
                          int k, void* act);  // unrounded, [k/2][rows][2] FP32; 4 * k * rows bytes
  void (*pack_fp4)(const float* x, std::int64_t ldx, const std::int32_t* index, int rows, int k,
                   void* act);

  // Rows packed alone (`rows` = 1), one after the other, into a buffer of rows `index`.
  void (*gather_pairs)(const void* alone, const std::int32_t* index, int rows, int k, void* act);
  void (*gather_fp4)(const void* alone, const std::int32_t* index, int rows, int k, void* act);

  void (*linear)(const LinearArgs&);
  void (*linear_fp32)(const LinearArgs&);  // act from pack_pairs_fp32
  void (*linear_scatter)(const LinearArgs&, const Scatter&);
  void (*gate_up)(const GateUpArgs&);
  void (*fp4_linear)(const Fp4Args&);
  void (*fp4_scatter)(const Fp4Args&, const Scatter&);
  void (*fp4_gate_up)(const Fp4GateUpArgs&);

  void (*rms_norm)(const float* x, const bf16_t* weight, int n, float eps, float* out);
  void (*attn_res)(const AttnResArgs&);
  void (*add)(const float* a, const float* b, int n, float* out);  // out may alias a or b
  void (*sigmoid_gate)(const float* gate, int n, float* x);        // x *= sigmoid(gate)
  void (*widen)(const bf16_t* x, int n, float* out);

  void (*kda)(const KdaArgs&);
  void (*mla)(const MlaArgs&);
  // Merges `parts` ranges in order (part p at max + p * part_stride_heads etc.) into out [latent].
  void (*mla_merge)(const float* max, const float* sum, const float* acc, int parts,
                    std::int64_t scalar_stride, std::int64_t acc_stride, int latent, float* out);
  void (*latent_write)(const LatentWriteArgs&);
  void (*router_select)(const RouterArgs&);
  // Index of the largest of n values, the lower index on ties, -1 when a value is NaN.
  std::int32_t (*argmax)(const float* x, int n);
};

// The tables that are compiled in; null where the architecture has no such level.
const KernelTable* scalar_table();
const KernelTable* avx2_table();
const KernelTable* avx512_table();
const KernelTable* avx512_bf16_table();

}  // namespace stepfuse
