// Absorbed latent attention of one row: tiles of tokens, widened once for all heads, with an online
// softmax per head.
#include "stepfuse/kernels.h"

namespace stepfuse::STEPFUSE_LEVEL_NS {

// Tokens of a tile, a multiple of every level's lanes. A result depends on it, so it is fixed.
static constexpr int kTokenTile = 16;
// Numbers of a token record; the callers check it.
static constexpr int kRecordMax = 2048;
static constexpr int kScoreTokens = 4;
static constexpr int kSumHeads = 4;

struct TokenTile {
  alignas(64) float record[kTokenTile * kRecordMax];  // [token][stride]: latent, rope, zeros
  int count, stride;
};

// Tokens [token, token + count) and, up to a multiple of kScoreTokens, zero records.
SF_INLINE void fill_tile(const MlaArgs& a, int token, TokenTile& tile) {
  const int numbers = a.latent + a.rope;
  tile.stride = (numbers + kLanes - 1) / kLanes * kLanes;
  tile.count = min_int(kTokenTile, a.token_end - token);
  const int padded = (tile.count + kScoreTokens - 1) / kScoreTokens * kScoreTokens;
  for (int t = 0; t < padded; ++t) {
    float* to = tile.record + t * tile.stride;
    if (t < tile.count) widen_record(a, token + t, to);
    for (int i = t < tile.count ? numbers : 0; i < tile.stride; ++i) to[i] = 0.0f;
  }
}

// One vector of H queries and of kScoreTokens records.
struct ScoreStep {
  const float* query;
  std::int64_t query_stride;
  const float* record;
  int record_stride;
};
template <int H>
SF_INLINE void add_scores(const ScoreStep& s, Vec (*sum)[kScoreTokens]) {
  Vec query[H];
  SF_UNROLL for (int h = 0; h < H; ++h) query[h] = load(s.query + h * s.query_stride);
  SF_UNROLL for (int t = 0; t < kScoreTokens; ++t) {
    const Vec x = load(s.record + t * s.record_stride);
    SF_UNROLL for (int h = 0; h < H; ++h) sum[h][t] = fma(query[h], x, sum[h][t]);
  }
}

// Scores of H heads for kScoreTokens tokens from `token` of the tile: score[h * kTokenTile + t].
template <int H>
SF_INLINE void score_block(const MlaArgs& a, const TokenTile& tile, int head, int token,
                           float* score) {
  Vec sum[H][kScoreTokens] = {};
  const float* record = tile.record + token * tile.stride;
  const float* q = a.q_latent + static_cast<std::int64_t>(head) * a.latent;
  for (int i = 0; i < a.latent; i += kLanes) {
    add_scores<H>({q + i, a.latent, record + i, tile.stride}, sum);
  }
  const float* pe = a.q_pe + head * a.q_pe_stride;
  record += a.latent;
  int i = 0;
  for (; i + kLanes <= a.rope; i += kLanes) {
    add_scores<H>({pe + i, a.q_pe_stride, record + i, tile.stride}, sum);
  }
  if (i < a.rope) {
    float rest[H * kLanes];
    for (int h = 0; h < H; ++h) {
      store(rest + h * kLanes, load_some(pe + h * a.q_pe_stride + i, a.rope - i));
    }
    add_scores<H>({rest, kLanes, record + i, tile.stride}, sum);
  }
  SF_UNROLL for (int h = 0; h < H; ++h) {
    SF_UNROLL for (int t = 0; t < kScoreTokens; ++t) {
      score[h * kTokenTile + token + t] = reduce_add(sum[h][t]) * a.scale;
    }
  }
}

// Turns one head's scores into exponentials against the new maximum, and rescales what it has.
SF_INLINE void soften(const MlaArgs& a, int head, int count, float* score) {
  for (int t = count; t < kTokenTile; ++t) score[t] = -__builtin_inff();
  Vec top = load(score);
  for (int t = kLanes; t < kTokenTile; t += kLanes) top = max(top, load(score + t));
  const float before = a.max[head], tile_top = reduce_max(top);
  const float now = tile_top > before || tile_top != tile_top ? tile_top : before;
  Vec sum{};
  for (int t = 0; t < kTokenTile; t += kLanes) {
    const Vec p = exp(load(score + t) - now);
    store(score + t, p);
    sum += p;
  }
  const float keep = before == now ? 1.0f : exp_one(before - now);
  a.max[head] = now;
  a.sum[head] = fma_one(a.sum[head], keep, reduce_add(sum));
  if (keep == 1.0f) return;
  float* acc = a.acc + static_cast<std::int64_t>(head) * a.latent;
  for (int i = 0; i < a.latent; i += kLanes) store(acc + i, load(acc + i) * keep);
}

// acc[head + h] += sum over the tile's tokens of p * latent.
template <int H>
SF_INLINE void sum_block(const MlaArgs& a, const TokenTile& tile, int head, const float* score) {
  float* acc = a.acc + static_cast<std::int64_t>(head) * a.latent;
  for (int i = 0; i < a.latent; i += kLanes) {
    Vec sum[H];
    SF_UNROLL for (int h = 0; h < H; ++h) sum[h] = load(acc + h * a.latent + i);
    for (int t = 0; t < tile.count; ++t) {
      const Vec x = load(tile.record + t * tile.stride + i);
      SF_UNROLL for (int h = 0; h < H; ++h) {
        sum[h] = fma(set1(score[h * kTokenTile + t]), x, sum[h]);
      }
    }
    SF_UNROLL for (int h = 0; h < H; ++h) store(acc + h * a.latent + i, sum[h]);
  }
}

template <int H>
static void attend_heads(const MlaArgs& a, const TokenTile& tile, int head) {
  alignas(64) float score[H * kTokenTile];
  constexpr int kPair = H < 2 ? H : 2;
  for (int h = 0; h < H; h += kPair) {
    for (int t = 0; t < tile.count; t += kScoreTokens) {
      score_block<kPair>(a, tile, head + h, t, score + h * kTokenTile);
    }
  }
  for (int h = 0; h < H; ++h) soften(a, head + h, tile.count, score + h * kTokenTile);
  sum_block<H>(a, tile, head, score);
}

static void mla(const MlaArgs& a) {
  TokenTile tile;
  for (int head = a.head_begin; head < a.head_end; ++head) {
    a.max[head] = -__builtin_inff();
    a.sum[head] = 0.0f;
    float* acc = a.acc + static_cast<std::int64_t>(head) * a.latent;
    for (int i = 0; i < a.latent; i += kLanes) store(acc + i, Vec{});
  }
  for (int token = a.token_begin; token < a.token_end; token += kTokenTile) {
    fill_tile(a, token, tile);
    int head = a.head_begin;
    for (; head + kSumHeads <= a.head_end; head += kSumHeads)
      attend_heads<kSumHeads>(a, tile, head);
    for (; head < a.head_end; ++head) attend_heads<1>(a, tile, head);
  }
}

// Ranges in order: out = sum of exp(max_p - max) acc_p over sum of exp(max_p - max) sum_p.
static void mla_merge(const float* max_of, const float* sum_of, const float* acc, int parts,
                      std::int64_t scalar_stride, std::int64_t acc_stride, int latent, float* out) {
  float top = -__builtin_inff();
  for (int p = 0; p < parts; ++p) {
    const float m = max_of[p * scalar_stride];
    top = m > top || m != m ? m : top;
  }
  float total = 0.0f;
  for (int i = 0; i < latent; i += kLanes) store(out + i, Vec{});
  for (int p = 0; p < parts; ++p) {
    const float m = max_of[p * scalar_stride];
    if (m == -__builtin_inff()) continue;
    const float weight = exp_one(m - top);
    total = fma_one(sum_of[p * scalar_stride], weight, total);
    const float* from = acc + p * acc_stride;
    for (int i = 0; i < latent; i += kLanes) {
      store(out + i, fma(load(from + i), set1(weight), load(out + i)));
    }
  }
  for (int i = 0; i < latent; i += kLanes) store(out + i, load(out + i) / total);
}

}  // namespace stepfuse::STEPFUSE_LEVEL_NS
