// One token of Kimi Delta Attention: convolution, gates, state, gated norm, head by head.
//
// The state of a head is dim/32 tiles of [dim (k)][32 (v)], each read once for S^T k and, while it
// is in the first-level cache, updated and read for S^T q. Sums run over k in kStateChains chains.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

// Channels of a head; the callers check it.
static constexpr int kHeadDimMax = 512;
static constexpr int kStateChains = 8 / kTileVectors > 0 ? 8 / kTileVectors : 1;
static constexpr float kL2Eps = 1e-6f;

struct KdaHead {
  alignas(64) float q[kHeadDimMax];
  alignas(64) float k[kHeadDimMax];
  alignas(64) float v[kHeadDimMax];
  alignas(64) float decay[kHeadDimMax];  // exp(g)
  alignas(64) float decayed_k[kHeadDimMax];
  alignas(64) float o[kHeadDimMax];
  float beta;
};

// SiLU of the causal convolution of one of q, k, v over one head's channels; the window moves on.
SF_INLINE void convolve(const KdaArgs& a, const float* x, int which, int head, float* out) {
  const std::int64_t width = static_cast<std::int64_t>(a.heads) * a.dim;
  const std::int64_t at = static_cast<std::int64_t>(head) * a.dim;
  const float* tap = a.conv_weight + which * kConvTaps * width + at;
  bf16_t* past = a.conv_state + which * width + at;
  for (int i = 0; i < a.dim; i += kLanes) {
    const Vec present = as_vec(round_bf16(load(x + at + i)));
    const Vec newest = load_bf16(past + 6 * width + i), middle = load_bf16(past + 3 * width + i);
    Vec y = load_bf16(past + i) * load(tap + i);
    y = fma(middle, load(tap + width + i), y);
    y = fma(newest, load(tap + 2 * width + i), y);
    y = fma(present, load(tap + 3 * width + i), y);
    store_bf16(past + i, middle);
    store_bf16(past + 3 * width + i, newest);
    store_bf16(past + 6 * width + i, present);
    store(out + i, silu(y));
  }
}

SF_INLINE void scale_row(float* x, int n, float by) {
  for (int i = 0; i < n; i += kLanes) store(x + i, load(x + i) * by);
}

SF_INLINE void prepare_head(const KdaArgs& a, int head, KdaHead& h) {
  convolve(a, a.q, 0, head, h.q);
  convolve(a, a.k, 1, head, h.k);
  convolve(a, a.v, 2, head, h.v);
  const float root = square_root(static_cast<float>(a.dim));
  scale_row(h.q, a.dim, 1.0f / (square_root(sum_squares(h.q, a.dim) + kL2Eps) * root));
  scale_row(h.k, a.dim, 1.0f / square_root(sum_squares(h.k, a.dim) + kL2Eps));
  const std::int64_t at = static_cast<std::int64_t>(head) * a.dim;
  const float rate = exp_one(a.a_log[head]);
  for (int i = 0; i < a.dim; i += kLanes) {
    const Vec z = load(a.decay + at + i) + load(a.dt_bias + at + i);
    const Vec g =
        a.gate_lower_bound < 0.0f ? sigmoid(z * rate) * a.gate_lower_bound : softplus(z) * -rate;
    const Vec decay = exp(g);
    store(h.decay + i, decay);
    store(h.decayed_k + i, decay * load(h.k + i));
  }
  h.beta = sigmoid_one(a.beta[head]);
}

struct Columns {
  Vec v[kTileVectors];
};
SF_INLINE Columns joined(const Vec (*sum)[kTileVectors]) {
  Columns all;
  SF_UNROLL for (int v = 0; v < kTileVectors; ++v) {
    all.v[v] = sum[0][v];
    SF_UNROLL for (int c = 1; c < kStateChains; ++c) all.v[v] += sum[c][v];
  }
  return all;
}

// S^T k with the decayed S, which is not stored yet: the decay goes to k instead.
SF_INLINE Columns recall(const float* tile, const KdaHead& h, int dim) {
  Vec sum[kStateChains][kTileVectors] = {};
  for (int k = 0; k < dim; k += kStateChains) {
    SF_UNROLL for (int c = 0; c < kStateChains; ++c) {
      const float* row = tile + (k + c) * kTileRows;
      for (int line = 0; line < kTileRows; line += 16) prefetch(row + line + kPrefetchBytes / 4);
      const Vec key = set1(h.decayed_k[k + c]);
      SF_UNROLL for (int v = 0; v < kTileVectors; ++v) {
        sum[c][v] = fma(load(row + v * kLanes), key, sum[c][v]);
      }
    }
  }
  return joined(sum);
}

// S <- decay S + k (beta e)^T, and S^T q of the new S.
SF_INLINE Columns update(float* tile, const KdaHead& h, int dim, const Columns& error) {
  Vec sum[kStateChains][kTileVectors] = {};
  for (int k = 0; k < dim; k += kStateChains) {
    SF_UNROLL for (int c = 0; c < kStateChains; ++c) {
      const Vec decay = set1(h.decay[k + c]), key = set1(h.k[k + c]), query = set1(h.q[k + c]);
      float* row = tile + (k + c) * kTileRows;
      // The next tile, while this one is in the first-level cache.
      for (int line = 0; line < kTileRows; line += 16) prefetch(row + line + dim * kTileRows);
      SF_UNROLL for (int v = 0; v < kTileVectors; ++v) {
        const Vec s = fma(key, error.v[v], load(row + v * kLanes) * decay);
        store(row + v * kLanes, s);
        sum[c][v] = fma(s, query, sum[c][v]);
      }
    }
  }
  return joined(sum);
}

static void state_pass(float* state, KdaHead& h, int dim) {
  for (int first = 0; first < dim; first += kTileRows) {
    float* tile = state + static_cast<std::int64_t>(first) * dim;
    Columns error = recall(tile, h, dim);
    SF_UNROLL for (int v = 0; v < kTileVectors; ++v) {
      error.v[v] = (load(h.v + first + v * kLanes) - error.v[v]) * h.beta;
    }
    const Columns out = update(tile, h, dim, error);
    SF_UNROLL for (int v = 0; v < kTileVectors; ++v) store(h.o + first + v * kLanes, out.v[v]);
  }
}

static void kda(const KdaArgs& a) {
  KdaHead h;
  for (int head = a.head_begin; head < a.head_end; ++head) {
    const std::int64_t at = static_cast<std::int64_t>(head) * a.dim;
    prepare_head(a, head, h);
    state_pass(a.state + at * a.dim, h, a.dim);
    const float mean = sum_squares(h.o, a.dim) / static_cast<float>(a.dim);
    const float inverse = 1.0f / square_root(mean + a.norm_eps);
    for (int i = 0; i < a.dim; i += kLanes) {
      const Vec normed = load(h.o + i) * inverse * load(a.norm_weight + i);
      store(a.out + at + i, normed * sigmoid(load(a.gate + at + i)));
    }
  }
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
