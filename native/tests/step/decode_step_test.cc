// A whole small model with random weights: the same logits, bit for bit, from every number of
// threads, with and without fused heads, several rows at once or one at a time. Under
// ThreadSanitizer it is also the proof that the barriers the program states are enough.
#include "step/decode_step.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "stepfuse/level.h"
#include "tests/check.h"

namespace {

using namespace stepfuse;

constexpr int kTokens = 12, kSlots = 3, kPages = 16, kPageTokens = 4, kTableStride = 8;
constexpr int kMaxRows = 12;

// Weights of any values in any layout make a model: what counts is that all runs agree.
class Pool {
 public:
  const bf16_t* bf16(std::int64_t count) {
    auto* data = take<bf16_t>(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = uniform() * 0.25f;
      std::uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      data[i] = static_cast<bf16_t>(bits >> 16);
    }
    return data;
  }
  const float* fp32(std::int64_t count) {
    auto* data = take<float>(count);
    for (std::int64_t i = 0; i < count; ++i) data[i] = uniform();
    return data;
  }
  const std::uint8_t* bytes(std::int64_t count) {
    auto* data = take<std::uint8_t>(count);
    // Nibbles and scales alike: every byte is a scale of 2^-15 to 2^0.
    for (std::int64_t i = 0; i < count; ++i) data[i] = 112 + next() % 16;
    return data;
  }

 private:
  template <class T>
  T* take(std::int64_t count) {
    blocks_.push_back(std::make_unique<std::byte[]>(count * sizeof(T) + 64));
    const auto address = reinterpret_cast<std::uintptr_t>(blocks_.back().get());
    return reinterpret_cast<T*>((address + 63) / 64 * 64);
  }
  std::uint32_t next() {
    return static_cast<std::uint32_t>(
        (state_ = state_ * 6364136223846793005ull + 1442695040888963407ull) >> 33);
  }
  float uniform() { return static_cast<float>(next() % 65536) / 32768.0f - 1.0f; }

  std::uint64_t state_ = 42;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

int padded(int rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

Geometry small_geometry(bool k3) {
  Geometry g{};
  g.hidden = 64;
  g.vocab = 70;
  g.layers = 4;
  g.max_rows = kMaxRows;
  g.norm_eps = 1e-5f;
  g.attn_res_block = k3 ? 2 : 0;
  g.activation = {k3 ? ActivationKind::kSitu : ActivationKind::kSwiGlu, 4.0f, 25.0f};
  g.kda_heads = 3;
  g.kda_dim = 32;
  g.decay_rank = 32;
  g.gate_rank = k3 ? 0 : 32;
  g.gate_lower_bound = k3 ? -5.0f : 0.0f;
  g.mla_heads = 3;
  g.q_lora = k3 ? 32 : 0;
  g.kv_lora = 32;
  g.nope = 24;
  g.rope = 16;
  g.v_dim = 24;
  g.mla_output_gate = k3;
  g.dense_width = 72;
  g.experts = 6;
  g.top_k = 2;
  g.expert_width = 64;
  g.shared_width = 40;
  g.latent = k3 ? 64 : 0;
  g.routed_scaling = 1.5f;
  g.renormalize = true;
  g.expert_format = k3 ? ExpertFormat::kMxfp4 : ExpertFormat::kBf16;
  return g;
}

struct Model {
  Geometry g;
  Pool pool;
  ModelWeights weights{};
  std::vector<LayerWeights> layers;

  explicit Model(bool k3) : g(small_geometry(k3)) {
    weights.embed = pool.bf16(g.vocab * g.hidden);
    weights.final_norm = pool.bf16(g.hidden);
    weights.lm_head = linear(g.vocab, g.hidden);
    weights.output_res_norm = pool.bf16(g.hidden);
    weights.output_res_proj = pool.bf16(g.hidden);
    for (int i = 0; i < g.layers; ++i) layers.push_back(layer(i % 2 == 1, i == 0));
  }
  const bf16_t* linear(int out, int in) { return pool.bf16(std::int64_t{padded(out)} * in); }

  KdaWeights kda() {
    const int width = g.kda_heads * g.kda_dim, low = 32, h = g.hidden;
    return {linear(width, h), linear(width, h),         linear(width, h),
            linear(low, h),   linear(width, low),       linear(g.kda_heads, h),
            linear(width, h), linear(low, h),           linear(width, low),
            linear(h, width), pool.fp32(3 * 4 * width), pool.fp32(g.kda_heads),
            pool.fp32(width), pool.fp32(g.kda_dim)};
  }
  MlaWeights mla() {
    const int q = g.mla_heads * (g.nope + g.rope), v = g.mla_heads * g.v_dim, h = g.hidden;
    return {linear(32, h),
            pool.bf16(32),
            linear(q, g.q_lora > 0 ? g.q_lora : h),
            linear(g.kv_lora + g.rope, h),
            pool.bf16(g.kv_lora),
            linear(g.mla_heads * padded(g.kv_lora), g.nope),
            linear(g.mla_heads * padded(g.v_dim), g.kv_lora),
            linear(v, h),
            linear(h, v)};
  }
  MoeWeights moe() {
    MoeWeights w{};
    const int in = g.latent > 0 ? g.latent : g.hidden, h = g.hidden;
    w.router = linear(g.experts, h);
    w.bias = pool.fp32(g.experts);
    w.latent_down = linear(in, h);
    w.latent_norm = pool.bf16(in);
    w.latent_up = linear(h, in);
    w.shared_gate_up = linear(2 * 48, h);
    w.shared_down = linear(h, g.shared_width);
    const std::int64_t up = std::int64_t{2} * g.expert_width * in, down = up / 2;
    if (g.latent > 0) {
      w.w13_scale_offset = up / 2;
      w.w2_offset = w.w13_scale_offset + up / 32;
      w.w2_scale_offset = w.w2_offset + down / 2;
      w.expert_bytes = w.w2_scale_offset + down / 32;
      w.experts = pool.bytes(g.experts * w.expert_bytes);
    } else {
      w.w2_offset = up * 2;
      w.expert_bytes = (up + down) * 2;
      w.experts = reinterpret_cast<const std::uint8_t*>(pool.bf16(g.experts * (up + down)));
    }
    return w;
  }
  LayerWeights layer(bool is_mla, bool is_dense) {
    const auto norm = [&] { return pool.bf16(g.hidden); };
    LayerWeights w{is_mla, is_dense, norm(), norm(), norm(), norm(),
                   norm(), norm(),   {},     {},     {},     {}};
    w.kda = kda();
    w.mla = mla();
    w.dense = {linear(2 * 80, g.hidden), linear(g.hidden, g.dense_width)};
    w.moe = moe();
    return w;
  }
};

// One step over caches and batch arrays of its own.
struct Bench {
  const Model& model;
  Team team;
  DecodeStep step;
  std::int64_t slot_floats, conv_words, token_bytes;
  std::vector<float> state;
  std::vector<bf16_t> conv;
  std::vector<std::uint8_t> latent;
  std::int32_t token[kMaxRows], slot[kMaxRows], pages[kMaxRows * kTableStride];
  std::int64_t position[kMaxRows];
  std::vector<float> logits;

  Bench(const Model& m, const KernelTable* table, int threads, int fuse)
      : model(m),
        team({threads, nullptr, true, 50'000, 60'000'000'000}),
        step({m.g, m.weights, m.layers, table, &team, fuse}),
        slot_floats(std::int64_t{m.g.kda_heads} * m.g.kda_dim * m.g.kda_dim),
        conv_words(std::int64_t{9} * m.g.kda_heads * m.g.kda_dim),
        token_bytes(m.g.kv_lora + m.g.rope + 8),
        state(2 * kSlots * slot_floats, NAN),
        conv(2 * kSlots * conv_words, 0x7FC0),
        latent(2 * kPages * kPageTokens * token_bytes, 0xFF),
        logits(kMaxRows * m.g.vocab) {
    BoundCaches caches{{}, {}, kPages, kSlots};
    for (int i = 0; i < 2; ++i) {
      const std::int64_t page = kPageTokens * token_bytes;
      caches.latent.push_back(
          {latent.data() + i * kPages * page, page, token_bytes, kPageTokens, KvDtype::kFp8});
      caches.state.push_back({state.data() + i * kSlots * slot_floats, slot_floats,
                              conv.data() + i * kSlots * conv_words, conv_words});
    }
    step.bind_caches(caches);
    step.bind_batch({0, token, position, slot, pages, kTableStride, logits.data()});
    step.arena().poison();
  }

  // Rows of sequences 0 and 1: `count` tokens of each from `begin`.
  void place(int begin, int count) {
    for (int s = 0; s < 2; ++s) {
      for (int i = 0; i < count; ++i) {
        const int row = s * count + i;
        token[row] = (7 * (begin + i) + 31 * s) % model.g.vocab;
        position[row] = begin + i;
        slot[row] = 2 - s;
        for (int p = 0; p < kTableStride; ++p) pages[row * kTableStride + p] = 2 * p + s;
      }
    }
  }
  // All logits of both sequences, taken `count` tokens at a time: [sequence][token][vocab].
  std::vector<float> decode(int count) {
    const int vocab = model.g.vocab;
    std::vector<float> all(std::size_t{2} * kTokens * vocab);
    for (int begin = 0; begin < kTokens; begin += count) {
      place(begin, count);
      CHECK(step.check_batch(2 * count).text.empty());
      step.run(2 * count, step.stages());
      for (int s = 0; s < 2; ++s) {
        std::memcpy(&all[(s * kTokens + begin) * vocab], &logits[s * count * vocab],
                    sizeof(float) * count * vocab);
      }
    }
    return all;
  }
};

void check_model(bool k3) {
  const Model model(k3);
  for (const Level level : {Level::kScalar, level_best()}) {
    const KernelTable* table = level_table(level);
    const std::vector<float> want = Bench(model, table, 1, 1).decode(1);
    for (const float value : want) CHECK(std::isfinite(value));
    for (const int threads : {1, 2, 3, 4, 7}) {
      for (const int fuse : {0, 1}) {
        for (const int count : {1, 3, 6}) {
          const std::vector<float> got = Bench(model, table, threads, fuse).decode(count);
          CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

}  // namespace

int main() {
  check_model(true);
  check_model(false);
  return stepfuse::test::report();
}
