// Expert choice: sigmoid scores, a bias that only selects, k distinct experts.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

// Experts a router may have; the callers check it.
static constexpr int kExpertsMax = 4096;
static constexpr std::int32_t kTaken = -0x7fffffff - 1;

// FP32 order as integer order. Adding +0 makes -0 and +0 equal; a NaN ranks below -inf.
SF_INLINE Bits order_key(Vec v) {
  const Bits b = as_bits(v + 0.0f);
  const Bits key = b ^ ((b >> 31) & 0x7fffffff);
  return v == v ? key : set1_bits(kTaken + 1);
}

// The lowest index whose key is the largest of the first `count` (a multiple of kLanes) keys.
SF_INLINE int largest_key(const std::int32_t* keys, int count) {
  Bits top = set1_bits(kTaken);
  for (int i = 0; i < count; i += kLanes) top = max_bits(load_bits(keys + i), top);
  std::int32_t best = kTaken;
  for (int lane = 0; lane < kLanes; ++lane) best = top[lane] > best ? top[lane] : best;
  int at = 0;
  while (keys[at] != best) ++at;
  return at;
}

static void router_select(const RouterArgs& a) {
  alignas(64) std::int32_t keys[kExpertsMax + kLanes];
  int count = 0;
  for (; count < a.experts; count += kLanes) {
    const int rest = a.experts - count;
    const bool full = rest >= kLanes;
    const Vec logit = full ? load(a.logits + count) : load_some(a.logits + count, rest);
    const Vec bias = full ? load(a.bias + count) : load_some(a.bias + count, rest);
    const Bits key = order_key(sigmoid(logit) + bias);
    for (int lane = 0; lane < kLanes; ++lane) keys[count + lane] = lane < rest ? key[lane] : kTaken;
  }
  for (int chosen = 0; chosen < a.k; ++chosen) keys[largest_key(keys, count)] = kTaken;
  float sum = 0.0f;
  for (int i = 0, found = 0; i < a.experts && found < a.k; ++i) {
    if (keys[i] != kTaken) continue;
    a.ids[found] = i;
    a.weights[found] = sigmoid_one(a.logits[i]);
    sum += a.weights[found++];
  }
  // Sigmoids of very negative logits may all be 0; the weights are then 0, not NaN.
  const float by =
      a.renormalize ? a.scaling / (sum > 1e-20f || sum != sum ? sum : 1e-20f) : a.scaling;
  for (int i = 0; i < a.k; ++i) a.weights[i] *= by;
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
