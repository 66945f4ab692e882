// Token records of the latent cache: writing one, and widening some for attention.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

static constexpr float kE4m3Max = 448.0f;

// |x| <= 448, or not finite (which becomes NaN), to e4m3fn; ties to even.
SF_INLINE std::uint8_t to_e4m3(float x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(float_bits(x));
  const std::uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7fu);  // above 448
  if (magnitude < 0x3c800000u) {  // below 2^-6: a multiple of 2^-9
    const float steps = bits_float(static_cast<std::int32_t>(magnitude)) * 512.0f;
    // Adding 2^23 rounds to the nearest even integer.
    const float rounded = (steps + 8388608.0f) - 8388608.0f;
    return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>(rounded));
  }
  const std::uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

// 2^ceil(log2(amax / 448)) for n numbers, at least 2^-126; 1 when all are 0 or one is not finite.
SF_INLINE float power_scale(const float* x, int n) {
  float most = 0.0f;
  for (int i = 0; i < n; ++i) {
    const float magnitude = __builtin_fabsf(x[i]);
    if (!(magnitude <= 3.4028235e38f)) return 1.0f;
    most = magnitude > most ? magnitude : most;
  }
  if (most == 0.0f) return 1.0f;
  const std::int32_t bits = float_bits(most / kE4m3Max);
  const std::int32_t up = (bits >> 23) + ((bits & 0x7fffff) != 0);
  return bits_float((up < 1 ? 1 : up) << 23);
}

SF_INLINE void write_e4m3(const float* x, int n, std::uint8_t* codes, std::uint8_t* scale_at) {
  const float scale = power_scale(x, n);
  for (int i = 0; i < n; ++i) codes[i] = to_e4m3(x[i] / scale);
  __builtin_memcpy(scale_at, &scale, sizeof(scale));
}

static void latent_write(const LatentWriteArgs& a) {
  if (a.dtype == KvDtype::kFp8) {
    std::uint8_t* scales = a.record + a.latent_dim + a.rope;
    write_e4m3(a.latent, a.latent_dim, a.record, scales);
    write_e4m3(a.pe, a.rope, a.record + a.latent_dim, scales + sizeof(float));
    return;
  }
  for (int i = 0; i < a.latent_dim + a.rope; ++i) {
    const bf16_t word = to_bf16(i < a.latent_dim ? a.latent[i] : a.pe[i - a.latent_dim]);
    __builtin_memcpy(a.record + 2 * i, &word, sizeof(word));
  }
}

SF_INLINE void widen_bf16(const std::uint8_t* from, int n, float* to) {
  const bf16_t* words = reinterpret_cast<const bf16_t*>(from);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load_bf16(words + i));
  if (i < n) store_some(to + i, load_bf16_some(words + i, n - i), n - i);
}

SF_INLINE void widen_e4m3(const std::uint8_t* from, int n, const std::uint8_t* scale_at,
                          float* to) {
  float scale;
  __builtin_memcpy(&scale, scale_at, sizeof(scale));
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load_e4m3(from + i) * scale);
  if (i == n) return;
  std::uint8_t rest[kLanes] = {};
  for (int lane = 0; lane < n - i; ++lane) rest[lane] = from[i + lane];
  store_some(to + i, load_e4m3(rest) * scale, n - i);
}

// Token `token` of a row's cache as FP32 [latent][rope].
SF_INLINE void widen_record(const MlaArgs& a, int token, float* to) {
  const std::int64_t page = a.pages[token / a.page_tokens];
  const std::uint8_t* record =
      a.kv_base + page * a.page_bytes + token % a.page_tokens * a.token_bytes;
  if (a.dtype == KvDtype::kBf16) return widen_bf16(record, a.latent + a.rope, to);
  const std::uint8_t* scales = record + a.latent + a.rope;
  widen_e4m3(record, a.latent, scales, to);
  widen_e4m3(record + a.latent, a.rope, scales + sizeof(float), to + a.latent);
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
