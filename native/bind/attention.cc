#include <algorithm>
#include <vector>

#include "bind/bind.h"
#include "bind/calls.h"

namespace nb = nanobind;

namespace stepfuse {
namespace {

// A fresh sequence starts from a zero state and an empty window, whatever its slot held.
void clear_heads(const KdaCall& call, const KdaArgs& args) {
  const std::int64_t head_size = static_cast<std::int64_t>(call.dim) * call.dim;
  std::fill(args.state + args.head_begin * head_size, args.state + args.head_end * head_size, 0.0f);
  const std::int64_t width = static_cast<std::int64_t>(call.heads) * call.dim;
  for (int past = 0; past < 3 * (kConvTaps - 1); ++past) {
    bf16_t* row = args.conv_state + past * width;
    std::fill(row + static_cast<std::int64_t>(args.head_begin) * call.dim,
              row + static_cast<std::int64_t>(args.head_end) * call.dim, bf16_t{0});
  }
}

// Heads [begin, end) of a call.
struct Heads {
  int begin, end;
};

KdaArgs kda_args(const KdaCall& call, const SpanRow& span, std::int64_t row, Heads heads) {
  const std::int64_t width = static_cast<std::int64_t>(call.heads) * call.dim;
  const std::int64_t from = row * width;
  return {at<float>(call.q) + from,
          at<float>(call.k) + from,
          at<float>(call.v) + from,
          at<float>(call.decay) + from,
          at<float>(call.beta) + row * call.heads,
          at<float>(call.gate) + from,
          at<float>(call.conv_weight),
          at<float>(call.a_log),
          at<float>(call.dt_bias),
          at<float>(call.norm_weight),
          at<bf16_t>(call.conv_state) + span.slot * call.conv_stride,
          at<float>(call.state) + span.slot * call.state_stride,
          at<float>(call.out) + from,
          call.heads,
          call.dim,
          heads.begin,
          heads.end,
          call.gate_lower_bound,
          call.norm_eps};
}

void advance(const KdaCall& call, const SpanRow& span, Heads heads) {
  for (std::int64_t i = 0; i < span.rows; ++i) {
    const KdaArgs args = kda_args(call, span, span.start + i, heads);
    if (i == 0 && span.cached == 0) clear_heads(call, args);
    kernels().kda(args);
  }
}

// A head goes through all tokens of a span before the next one starts: its state stays in cache.
void run_kda(const KdaCall& call, Team* team) {
  auto body = [&](Share share) {
    for (int s = 0; s < call.span_count; ++s) {
      for (int h = share.begin(call.heads); h < share.end(call.heads); ++h) {
        advance(call, at<SpanRow>(call.spans)[s], {h, h + 1});
      }
    }
  };
  on_team(team, body);
}

struct RowWork {
  std::int64_t row;
  const std::int32_t* pages;
  int tokens;
};

std::vector<RowWork> rows_of(const MlaCall& call) {
  std::vector<RowWork> rows;
  for (int s = 0; s < call.span_count; ++s) {
    const SpanRow& span = at<SpanRow>(call.spans)[s];
    for (std::int64_t i = 0; i < span.rows; ++i) {
      rows.push_back({span.start + i, at<std::int32_t>(call.pages) + s * call.pages_stride,
                      static_cast<int>(span.cached + i + 1)});
    }
  }
  return rows;
}

// Running maximum, sum and latent sums of one member's heads.
struct Softmax {
  std::vector<float> max, sum, acc;
};

void attend(const MlaCall& call, const RowWork& work, int head_begin, int head_end,
            Softmax& scratch) {
  const KernelTable& table = kernels();
  const std::int64_t head = static_cast<std::int64_t>(call.heads) * work.row;
  MlaArgs args{};
  args.q_latent = at<float>(call.q_latent) + head * call.latent;
  args.q_pe = at<float>(call.q_pe) + head * call.rope;
  args.q_pe_stride = call.rope;
  args.kv_base = at<std::uint8_t>(call.kv_base);
  args.page_bytes = call.page_bytes;
  args.token_bytes = call.token_bytes;
  args.pages = work.pages;
  args.page_tokens = call.page_tokens;
  args.dtype = call.fp8 ? KvDtype::kFp8 : KvDtype::kBf16;
  args.token_end = work.tokens;
  args.latent = call.latent;
  args.rope = call.rope;
  args.head_begin = head_begin;
  args.head_end = head_end;
  args.scale = call.scale;
  args.max = scratch.max.data();
  args.sum = scratch.sum.data();
  args.acc = scratch.acc.data();
  table.mla(args);
  for (int h = head_begin; h < head_end; ++h) {
    table.mla_merge(args.max + h, args.sum + h,
                    args.acc + static_cast<std::int64_t>(h) * call.latent, 1, 0, 0, call.latent,
                    at<float>(call.out) + (head + h) * call.latent);
  }
}

void run_mla(const MlaCall& call, Team* team) {
  const std::vector<RowWork> rows = rows_of(call);
  auto body = [&](Share share) {
    const auto heads = static_cast<std::size_t>(call.heads);
    Softmax scratch{std::vector<float>(heads), std::vector<float>(heads),
                    std::vector<float>(heads * static_cast<std::size_t>(call.latent))};
    // Few rows are split by heads; many are dealt round robin, since later rows see more tokens.
    const bool by_rows = rows.size() >= 2 * static_cast<std::size_t>(share.count);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!by_rows) {
        attend(call, rows[i], share.begin(call.heads), share.end(call.heads), scratch);
      } else if (i % static_cast<std::size_t>(share.count) ==
                 static_cast<std::size_t>(share.index)) {
        attend(call, rows[i], 0, call.heads, scratch);
      }
    }
  };
  on_team(team, body);
}

void run_latent_write(const LatentCall& call) {
  const KernelTable& table = kernels();
  for (int s = 0; s < call.span_count; ++s) {
    const SpanRow& span = at<SpanRow>(call.spans)[s];
    const std::int32_t* pages = at<std::int32_t>(call.pages) + s * call.pages_stride;
    for (std::int64_t i = 0; i < span.rows; ++i) {
      const std::int64_t token = span.cached + i;
      std::uint8_t* record = at<std::uint8_t>(call.kv_base) +
                             pages[token / call.page_tokens] * call.page_bytes +
                             token % call.page_tokens * call.token_bytes;
      table.latent_write({at<float>(call.latent) + (span.start + i) * call.latent_dim,
                          at<float>(call.pe) + (span.start + i) * call.rope, record,
                          call.latent_dim, call.rope, call.fp8 ? KvDtype::kFp8 : KvDtype::kBf16});
    }
  }
}

void bind_kda(nb::module_& m) {
  nb::class_<KdaCall>(m, "KdaCall")
      .def(nb::init<>())
      .def_rw("q", &KdaCall::q)
      .def_rw("k", &KdaCall::k)
      .def_rw("v", &KdaCall::v)
      .def_rw("decay", &KdaCall::decay)
      .def_rw("beta", &KdaCall::beta)
      .def_rw("gate", &KdaCall::gate)
      .def_rw("out", &KdaCall::out)
      .def_rw("conv_weight", &KdaCall::conv_weight)
      .def_rw("a_log", &KdaCall::a_log)
      .def_rw("dt_bias", &KdaCall::dt_bias)
      .def_rw("norm_weight", &KdaCall::norm_weight)
      .def_rw("state", &KdaCall::state)
      .def_rw("conv_state", &KdaCall::conv_state)
      .def_rw("state_stride", &KdaCall::state_stride)
      .def_rw("conv_stride", &KdaCall::conv_stride)
      .def_rw("spans", &KdaCall::spans)
      .def_rw("span_count", &KdaCall::span_count)
      .def_rw("heads", &KdaCall::heads)
      .def_rw("dim", &KdaCall::dim)
      .def_rw("gate_lower_bound", &KdaCall::gate_lower_bound)
      .def_rw("norm_eps", &KdaCall::norm_eps);
  m.def("kda", &run_kda, nb::arg("call"), nb::arg("team").none(),
        nb::call_guard<nb::gil_scoped_release>());
}

void bind_mla(nb::module_& m) {
  nb::class_<MlaCall>(m, "MlaCall")
      .def(nb::init<>())
      .def_rw("q_latent", &MlaCall::q_latent)
      .def_rw("q_pe", &MlaCall::q_pe)
      .def_rw("out", &MlaCall::out)
      .def_rw("kv_base", &MlaCall::kv_base)
      .def_rw("page_bytes", &MlaCall::page_bytes)
      .def_rw("token_bytes", &MlaCall::token_bytes)
      .def_rw("spans", &MlaCall::spans)
      .def_rw("pages", &MlaCall::pages)
      .def_rw("pages_stride", &MlaCall::pages_stride)
      .def_rw("span_count", &MlaCall::span_count)
      .def_rw("page_tokens", &MlaCall::page_tokens)
      .def_rw("heads", &MlaCall::heads)
      .def_rw("latent", &MlaCall::latent)
      .def_rw("rope", &MlaCall::rope)
      .def_rw("fp8", &MlaCall::fp8)
      .def_rw("scale", &MlaCall::scale);
  m.def("mla", &run_mla, nb::arg("call"), nb::arg("team").none(),
        nb::call_guard<nb::gil_scoped_release>());
}

void bind_latent(nb::module_& m) {
  nb::class_<LatentCall>(m, "LatentCall")
      .def(nb::init<>())
      .def_rw("latent", &LatentCall::latent)
      .def_rw("pe", &LatentCall::pe)
      .def_rw("kv_base", &LatentCall::kv_base)
      .def_rw("page_bytes", &LatentCall::page_bytes)
      .def_rw("token_bytes", &LatentCall::token_bytes)
      .def_rw("spans", &LatentCall::spans)
      .def_rw("pages", &LatentCall::pages)
      .def_rw("pages_stride", &LatentCall::pages_stride)
      .def_rw("span_count", &LatentCall::span_count)
      .def_rw("page_tokens", &LatentCall::page_tokens)
      .def_rw("latent_dim", &LatentCall::latent_dim)
      .def_rw("rope", &LatentCall::rope)
      .def_rw("fp8", &LatentCall::fp8);
  m.def("latent_write", &run_latent_write, nb::arg("call"),
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_attention(nb::module_& m) {
  bind_kda(m);
  bind_mla(m);
  bind_latent(m);
}

}  // namespace stepfuse
