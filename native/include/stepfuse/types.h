// Scalar types and small enums every native file shares. No STL: level objects include this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepfuse {

// BF16 travels as its 16 bits; FP8 (e4m3fn) and MXFP4 nibble pairs as bytes.
using bf16_t = std::uint16_t;

// Rows one activation block holds; wider steps are cut into blocks of this many rows.
inline constexpr int kRowBlock = 8;
// Output rows of a packed weight tile.
inline constexpr int kTileRows = 32;
// Columns that share one MXFP4 scale.
inline constexpr int kFp4Group = 32;
// Past inputs a causal convolution of width 4 keeps.
inline constexpr int kConvTaps = 4;

enum class Level : std::int32_t { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };
enum class KvDtype : std::int32_t { kBf16 = 0, kFp8 = 1 };
enum class ExpertFormat : std::int32_t { kMxfp4 = 0, kBf16 = 1 };

// What follows a gate/up product. SiTU(g, u) = beta tanh(g/beta) sigmoid(g) * linear_beta
// tanh(u/linear_beta); SwiGLU is silu(g) * u and ignores both betas.
enum class ActivationKind : std::int32_t { kSwiGlu = 0, kSitu = 1 };
struct Activation {
  ActivationKind kind;
  float beta;
  float linear_beta;
};

}  // namespace stepfuse
