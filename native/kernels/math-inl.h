// Elementary functions over the vocabulary. Relative error at most 3e-7 where the result is a
// normal number; saturated where it is not; NaN in, NaN out.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

static constexpr float kLog2E = 1.44269504f;
// ln 2 in two parts: n * kLn2High is exact for |n| < 2^9.
static constexpr float kLn2High = 0.693359375f;
static constexpr float kLn2Low = -2.12194440e-4f;
// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer; the sum's low bits are that
// integer.
static constexpr float kRounder = 12582912.0f;

// 2^n for n in [-126, 127].
SF_INLINE Vec power_of_two(Bits n) { return as_vec((n + 127) << 23); }

struct Reduced {
  Bits n;  // x = n ln 2 + r
  Vec r;   // |r| <= ln 2 / 2
};
SF_INLINE Reduced reduce(Vec x) {
  const Vec shifted = fma(x, set1(kLog2E), set1(kRounder));
  const Vec n = shifted - kRounder;
  Vec r = fma(n, set1(-kLn2High), x);
  r = fma(n, set1(-kLn2Low), r);
  return {as_bits(shifted) - as_bits(set1(kRounder)), r};
}

// exp(r) - 1 for |r| <= ln 2 / 2: the series to r^8, whose remainder is below 1e-9 of r.
SF_INLINE Vec expm1_reduced(Vec r) {
  Vec p = set1(1.0f / 40320.0f);
  p = fma(p, r, set1(1.0f / 5040.0f));
  p = fma(p, r, set1(1.0f / 720.0f));
  p = fma(p, r, set1(1.0f / 120.0f));
  p = fma(p, r, set1(1.0f / 24.0f));
  p = fma(p, r, set1(1.0f / 6.0f));
  p = fma(p, r, set1(0.5f));
  return fma(p * r, r, r);
}

// 0 below -104 (under half the smallest denormal), inf above 89.
SF_INLINE Vec exp(Vec x) {
  const Reduced a = reduce(min(set1(89.0f), max(set1(-104.0f), x)));
  const Bits half = a.n >> 1;
  // Two factors, since n reaches 128 and -150.
  return (expm1_reduced(a.r) + 1.0f) * power_of_two(half) * power_of_two(a.n - half);
}
SF_INLINE float exp_one(float x) { return exp(set1(x))[0]; }

SF_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }
SF_INLINE float sigmoid_one(float x) { return sigmoid(set1(x))[0]; }
SF_INLINE Vec silu(Vec x) { return x / (1.0f + exp(-x)); }

// e^2|x| - 1, which keeps its relative precision near 0; tanh |x| is this over this plus 2.
SF_INLINE Vec tanh_part(Vec x) {
  // At 20 the quotient rounds to 1.
  const Reduced a = reduce(min(set1(20.0f), abs(x) * 2.0f));
  const Vec scale = power_of_two(a.n);
  return fma(expm1_reduced(a.r), scale, scale - 1.0f);
}

// log(1 + t) for t in [0, 1]: 2 atanh(s), s = t / (2 + t) <= 1/3, series to s^17.
SF_INLINE Vec log1p_unit(Vec t) {
  const Vec s = t / (t + 2.0f);
  const Vec q = s * s;
  Vec p = set1(1.0f / 17.0f);
  SF_UNROLL for (int odd = 15; odd >= 3; odd -= 2) p =
      fma(p, q, set1(1.0f / static_cast<float>(odd)));
  return fma(p * q, s, s) * 2.0f;
}
SF_INLINE Vec softplus(Vec z) { return max(set1(0.0f), z) + log1p_unit(exp(-abs(z))); }

SF_INLINE Vec activate(Vec gate, Vec up, const Activation& a) {
  if (a.kind == ActivationKind::kSwiGlu) return silu(gate) * up;
  // Both hyperbolic tangents in one quotient below 1: a division costs ten multiply-adds.
  const Vec g = tanh_part(gate * (1.0f / a.beta)), u = tanh_part(up * (1.0f / a.linear_beta));
  const Vec magnitude = (g * u) / ((g + 2.0f) * (u + 2.0f));
  const Bits sign = (as_bits(gate) ^ as_bits(up)) & static_cast<std::int32_t>(0x80000000u);
  return as_vec(as_bits(magnitude) | sign) * (a.beta * a.linear_beta) * sigmoid(gate);
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
