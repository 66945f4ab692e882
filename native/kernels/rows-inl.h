// Kernels over single rows: norms, residual mixes, elementwise steps, argmax.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

// Snapshots and prefix a residual mix may have.
static constexpr int kSourcesMax = 64;

SF_INLINE int whole(int n) { return n / kLanes * kLanes; }
SF_INLINE float square_root(float x) { return __builtin_sqrtf(x); }

// Sum of squares in two chains of kLanes lanes.
SF_INLINE float sum_squares(const float* x, int n) {
  Vec a{}, b{};
  int i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec u = load(x + i), v = load(x + i + kLanes);
    a = fma(u, u, a);
    b = fma(v, v, b);
  }
  for (; i < n; i += kLanes) {
    const Vec u = n - i >= kLanes ? load(x + i) : load_some(x + i, n - i);
    a = fma(u, u, a);
  }
  return reduce_add(a + b);
}

static void rms_norm(const float* x, const bf16_t* weight, int n, float eps, float* out) {
  const Vec inverse = set1(1.0f / square_root(sum_squares(x, n) / static_cast<float>(n) + eps));
  int i = 0;
  for (; i < whole(n); i += kLanes) store(out + i, load(x + i) * inverse * load_bf16(weight + i));
  if (i == n) return;
  const Vec y = load_some(x + i, n - i) * inverse * load_bf16_some(weight + i, n - i);
  store_some(out + i, y, n - i);
}

// proj . RMSNorm(x; norm)
static float mix_score(const float* x, const AttnResArgs& a) {
  Vec squares{}, dot{};
  int i = 0;
  for (; i < whole(a.n); i += kLanes) {
    const Vec v = load(x + i);
    squares = fma(v, v, squares);
    dot = fma(v, load_bf16(a.norm_weight + i) * load_bf16(a.proj_weight + i), dot);
  }
  if (i < a.n) {
    const int rest = a.n - i;
    const Vec v = load_some(x + i, rest);
    squares = fma(v, v, squares);
    dot = fma(v, load_bf16_some(a.norm_weight + i, rest) * load_bf16_some(a.proj_weight + i, rest),
              dot);
  }
  const float mean = reduce_add(squares) / static_cast<float>(a.n);
  return reduce_add(dot) / square_root(mean + a.eps);
}

// Element i of every source is read before element i of `out` is written: aliases are harmless.
static void attn_res(const AttnResArgs& a) {
  float weight[kSourcesMax];
  if (a.count == 1) {
    __builtin_memmove(a.out, a.sources[0], static_cast<std::size_t>(a.n) * sizeof(float));
    return;
  }
  float best = -__builtin_inff();
  for (int s = 0; s < a.count; ++s) {
    weight[s] = mix_score(a.sources[s], a);
    best = weight[s] > best || weight[s] != weight[s] ? weight[s] : best;
  }
  float total = 0.0f;
  for (int s = 0; s < a.count; ++s) total += weight[s] = exp_one(weight[s] - best);
  for (int s = 0; s < a.count; ++s) weight[s] /= total;
  for (int i = 0; i < a.n; i += kLanes) {
    const int rest = a.n - i;
    Vec sum{};
    for (int s = 0; s < a.count; ++s) {
      const float* x = a.sources[s] + i;
      sum = fma(rest >= kLanes ? load(x) : load_some(x, rest), set1(weight[s]), sum);
    }
    if (rest >= kLanes) {
      store(a.out + i, sum);
    } else {
      store_some(a.out + i, sum, rest);
    }
  }
}

static void add(const float* a, const float* b, int n, float* out) {
  int i = 0;
  for (; i < whole(n); i += kLanes) store(out + i, load(a + i) + load(b + i));
  for (; i < n; ++i) out[i] = a[i] + b[i];
}

static void sigmoid_gate(const float* gate, int n, float* x) {
  int i = 0;
  for (; i < whole(n); i += kLanes) store(x + i, load(x + i) * sigmoid(load(gate + i)));
  if (i == n) return;
  store_some(x + i, load_some(x + i, n - i) * sigmoid(load_some(gate + i, n - i)), n - i);
}

static void widen(const bf16_t* x, int n, float* out) {
  int i = 0;
  for (; i < whole(n); i += kLanes) store(out + i, load_bf16(x + i));
  for (; i < n; ++i) out[i] = from_bf16(x[i]);
}

static std::int32_t argmax(const float* x, int n) {
  Vec top = set1(-__builtin_inff());
  Bits nan{};
  int i = 0;
  for (; i < whole(n); i += kLanes) {
    const Vec v = load(x + i);
    top = max(v, top);
    nan |= v != v;
  }
  float best = reduce_max(top);
  std::int32_t any_nan = 0;
  for (int lane = 0; lane < kLanes; ++lane) any_nan |= nan[lane];
  for (; i < n; ++i) {
    any_nan |= x[i] != x[i];
    best = x[i] > best ? x[i] : best;
  }
  if (any_nan) return -1;
  for (i = 0; i < n; ++i) {
    if (x[i] == best) return i;
  }
  return -1;
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
