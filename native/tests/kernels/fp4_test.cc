// MXFP4 products of every level against FP64: error bound, tile ranges, rows, what is not finite.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "stepfuse/level.h"
#include "tests/check.h"

namespace stepfuse {
namespace {

constexpr float kCanary = 1e30f;
constexpr double kE2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

struct Matrix {
  int in, out;
  std::vector<std::uint8_t> nibbles, scales;  // packed

  double at(int n, int k) const {
    const int tile = n / kTileRows, lane = n % kTileRows;
    const std::size_t octet = static_cast<std::size_t>(tile) * (in / 8) + k / 8;
    const std::uint8_t byte = nibbles[(octet * kTileRows + lane) * 4 + k % 8 / 2];
    const std::size_t group = static_cast<std::size_t>(tile) * (in / kFp4Group) + k / kFp4Group;
    const int scale = scales[group * kTileRows + lane];
    return std::ldexp(kE2m1[k % 2 ? byte >> 4 : byte & 15], scale - 127);
  }
};

Matrix random_matrix(int in, int out, std::mt19937& random) {
  Matrix m{in, out, std::vector<std::uint8_t>(static_cast<std::size_t>(in) * out / 2),
           std::vector<std::uint8_t>(static_cast<std::size_t>(in) * out / kFp4Group)};
  for (std::uint8_t& byte : m.nibbles) byte = static_cast<std::uint8_t>(random());
  for (std::uint8_t& byte : m.scales) byte = static_cast<std::uint8_t>(117 + random() % 20);
  return m;
}

double rounded(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

// Inputs whose sizes differ by up to 2^20 within a group.
std::vector<float> random_rows(int rows, int in, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows) * in);
  for (float& value : x) value = std::ldexp(normal(random), static_cast<int>(random() % 20) - 10);
  return x;
}

std::vector<float> product(const KernelTable& table, const Matrix& m, const std::vector<float>& x,
                           int tiles_per_call) {
  const int rows = static_cast<int>(x.size()) / m.in, tiles = m.out / kTileRows;
  std::vector<std::uint8_t> act(table.act_bytes(m.in, rows) + 64, 0xcd);
  table.pack_fp4(x.data(), m.in, nullptr, rows, m.in, act.data());
  for (std::size_t i = act.size() - 64; i < act.size(); ++i) CHECK(act[i] == 0xcd);
  std::vector<float> y(static_cast<std::size_t>(rows) * m.out, NAN);
  y.resize(y.size() + 16, kCanary);
  for (int tile = 0; tile < tiles; tile += tiles_per_call) {
    table.fp4_linear({m.nibbles.data(), m.scales.data(), act.data(), y.data(), m.out, rows, m.in,
                      m.out, tile, std::min(tile + tiles_per_call, tiles)});
  }
  for (std::size_t i = y.size() - 16; i < y.size(); ++i) CHECK(y[i] == kCanary);
  y.resize(y.size() - 16);
  return y;
}

// Half a fixed-point step of the group's largest input, and FP32 rounding of every addition.
double bound_of(const Matrix& m, const float* x, int n) {
  double bound = 0;
  for (int begin = 0; begin < m.in; begin += kFp4Group) {
    double most = 0, weights = 0, terms = 0;
    for (int k = begin; k < begin + kFp4Group; ++k) {
      most = std::max(most, std::fabs(rounded(x[k])));
      weights += std::fabs(m.at(n, k));
      terms += std::fabs(m.at(n, k) * rounded(x[k]));
    }
    bound += weights * most * 0x1p-15 + terms * (m.in + 4) * 0x1p-24;
  }
  return bound;
}

void test_products(const KernelTable& table) {
  std::mt19937 random(1);
  for (const int in : {32, 96, 224, 1056}) {
    const Matrix m = random_matrix(in, 96, random);
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 65}) {
      const std::vector<float> x = random_rows(rows, in, random);
      const std::vector<float> y = product(table, m, x, 3);
      bool near = true;
      for (int r = 0; r < rows; r += rows > 9 ? 8 : 1) {
        const float* row = x.data() + static_cast<std::size_t>(r) * in;
        for (int n = 0; n < m.out; ++n) {
          double want = 0;
          for (int k = 0; k < in; ++k) want += m.at(n, k) * rounded(row[k]);
          const double got = y[static_cast<std::size_t>(r) * m.out + n];
          near = near && std::fabs(got - want) <= bound_of(m, row, n);
        }
      }
      CHECK(near);
      CHECK(std::memcmp(y.data(), product(table, m, x, 1).data(), y.size() * 4) == 0);
      const std::vector<float> last(x.end() - in, x.end());
      const std::vector<float> alone = product(table, m, last, 2);
      CHECK(std::memcmp(alone.data(), y.data() + y.size() - m.out, alone.size() * 4) == 0);
    }
  }
}

// Inputs of 7 bits within 2^6 of each other are exact on every level, and so are sums of few terms.
void test_exact(const KernelTable& table) {
  std::mt19937 random(2);
  const Matrix m = random_matrix(32, 32, random);
  for (const float most : {1.9921875f, 1.0f, 0x1p100f, 0x1p-60f}) {
    std::vector<float> x(32, 0.0f);
    x[5] = most;
    x[30] = -most / 64;
    const std::vector<float> y = product(table, m, x, 1);
    for (int n = 0; n < 32; ++n) {
      CHECK(y[static_cast<std::size_t>(n)] ==
            static_cast<float>(m.at(n, 5) * most - m.at(n, 30) * (most / 64)));
    }
  }
}

void test_not_finite(const KernelTable& table) {
  std::mt19937 random(3);
  const Matrix m = random_matrix(64, 32, random);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x(128, 1.0f);
    x[40] = bad;
    const std::vector<float> y = product(table, m, x, 1);
    for (int n = 0; n < 32; ++n) {
      CHECK(!std::isfinite(y[static_cast<std::size_t>(n)]) || m.at(n, 40) == 0);
      CHECK(std::isfinite(y[static_cast<std::size_t>(32 + n)]));
    }
  }
  const std::vector<float> zeros = product(table, m, std::vector<float>(64, 0.0f), 1);
  for (const float y : zeros) CHECK(y == 0.0f);
}

}  // namespace
}  // namespace stepfuse

int main() {
  using namespace stepfuse;
  for (const Level level : {Level::kScalar, Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16}) {
    const KernelTable* table = level_table(level);
    std::printf("%s: %s\n", level_name(level), table ? "run" : "skipped, cannot run here");
    if (table == nullptr) continue;
    test_products(*table);
    test_exact(*table);
    test_not_finite(*table);
  }
  return test::report();
}
