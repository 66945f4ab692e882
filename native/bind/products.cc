#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "bind/bind.h"
#include "bind/calls.h"

namespace nb = nanobind;

namespace stepfuse {
namespace {

int tiles_of(int rows) { return (rows + kTileRows - 1) / kTileRows; }

// Memory of this thread that lasts: fresh pages would cost more than the packing into them.
std::byte* scratch(std::size_t bytes) {
  thread_local std::vector<std::byte> memory;
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

using Pack = decltype(KernelTable::pack_pairs);

// Each member packs its share of the row blocks; all have arrived when this returns.
void pack_together(const ProductCall& call, Share share, Pack pack, std::size_t pair_bytes,
                   std::byte* act) {
  const int k = call.in_features, blocks = (call.rows + kRowBlock - 1) / kRowBlock;
  const int first = share.begin(blocks) * kRowBlock;
  const int rows = std::min(share.end(blocks) * kRowBlock, call.rows) - first;
  if (rows > 0) {
    const std::size_t before = static_cast<std::size_t>(first) * (k / 2) * pair_bytes;
    pack(at<float>(call.x) + static_cast<std::int64_t>(first) * k, k, nullptr, rows, k,
         act + before);
  }
  share.barrier("pack");
}

void run_linear(const ProductCall& call, Team* team) {
  const KernelTable& table = kernels();
  std::byte* act = scratch(table.act_bytes(call.in_features, call.rows));
  auto body = [&](Share share) {
    pack_together(call, share, table.pack_pairs, table.pair_bytes, act);
    const int tiles = tiles_of(call.out_features);
    table.linear({at<bf16_t>(call.weight), act, at<float>(call.y), call.out_features, call.rows,
                  call.in_features, call.out_features, share.begin(tiles), share.end(tiles)});
  };
  on_team(team, body);
}

void run_linear_fp32(const ProductCall& call, Team* team) {
  const KernelTable& table = kernels();
  const std::size_t pair_bytes = 2 * sizeof(float);
  std::byte* act = scratch(pair_bytes * (call.in_features / 2) * call.rows);
  auto body = [&](Share share) {
    pack_together(call, share, table.pack_pairs_fp32, pair_bytes, act);
    const int tiles = tiles_of(call.out_features);
    table.linear_fp32({at<bf16_t>(call.weight), act, at<float>(call.y), call.out_features,
                       call.rows, call.in_features, call.out_features, share.begin(tiles),
                       share.end(tiles)});
  };
  on_team(team, body);
}

void run_gate_up(const ProductCall& call, const Activation& activation, Team* team) {
  const KernelTable& table = kernels();
  std::byte* act = scratch(table.act_bytes(call.in_features, call.rows));
  auto body = [&](Share share) {
    pack_together(call, share, table.pack_pairs, table.pair_bytes, act);
    const int tiles = (call.out_features + kTileRows / 2 - 1) / (kTileRows / 2);
    table.gate_up({at<bf16_t>(call.weight), act, at<float>(call.y), call.out_features, call.rows,
                   call.in_features, call.out_features, share.begin(tiles), share.end(tiles),
                   activation});
  };
  on_team(team, body);
}

void run_heads(const ProductCall& call, Team* team) {
  const KernelTable& table = kernels();
  const std::int64_t ldx = static_cast<std::int64_t>(call.heads) * call.in_features;
  const std::int64_t ldy = static_cast<std::int64_t>(call.heads) * call.out_features;
  const int tiles = tiles_of(call.out_features);
  const std::int64_t head_words = static_cast<std::int64_t>(tiles) * kTileRows * call.in_features;
  auto body = [&](Share share) {
    std::vector<std::uint8_t> act(table.act_bytes(call.in_features, call.rows));
    for (int h = share.begin(call.heads); h < share.end(call.heads); ++h) {
      table.pack_pairs(at<float>(call.x) + static_cast<std::int64_t>(h) * call.in_features, ldx,
                       nullptr, call.rows, call.in_features, act.data());
      table.linear({at<bf16_t>(call.weight) + h * head_words, act.data(),
                    at<float>(call.y) + static_cast<std::int64_t>(h) * call.out_features, ldy,
                    call.rows, call.in_features, call.out_features, 0, tiles});
    }
  };
  on_team(team, body);
}

// The rows of one expert in a batch of experts.
struct Group {
  int expert;
  std::vector<std::int32_t> rows;
  std::vector<float> scale;
  std::size_t hidden_at = 0;            // floats
  std::size_t act_at = 0, down_at = 0;  // bytes
};

std::vector<Group> grouped(const ExpertsCall& call) {
  std::vector<Group> all(static_cast<std::size_t>(call.experts));
  for (int r = 0; r < call.rows; ++r) {
    for (int c = 0; c < call.chosen; ++c) {
      const std::int64_t i = static_cast<std::int64_t>(r) * call.chosen + c;
      Group& group = all[static_cast<std::size_t>(at<std::int32_t>(call.ids)[i])];
      group.rows.push_back(r);
      group.scale.push_back(at<float>(call.weights)[i]);
    }
  }
  std::vector<Group> used;
  for (int e = 0; e < call.experts; ++e) {
    Group& group = all[static_cast<std::size_t>(e)];
    group.expert = e;
    if (!group.rows.empty()) used.push_back(std::move(group));
  }
  return used;
}

// One batch of experts in four phases. Every element of y belongs to one member, which adds the
// experts in ascending order.
class ExpertBatch {
 public:
  ExpertBatch(const ExpertsCall& call, const Activation& activation, Group* groups, int count)
      : call_(call), activation_(activation), groups_(groups), count_(count) {
    std::size_t hidden = 0, act = 0, down = 0;
    for (int g = 0; g < count; ++g) {
      const int rows = static_cast<int>(groups[g].rows.size());
      groups[g].hidden_at = hidden;
      groups[g].act_at = act;
      groups[g].down_at = down;
      hidden += groups[g].rows.size() * static_cast<std::size_t>(call.width);
      act += table_.act_bytes(call.in_features, rows);
      down += table_.act_bytes(call.width, rows);
    }
    hidden_.resize(hidden);
    act_.resize(act);
    down_.resize(down);
  }

  void run(Share share) {
    const auto pack = call_.mxfp4 ? table_.pack_fp4 : table_.pack_pairs;
    for (int g = share.begin(count_); g < share.end(count_); ++g) {
      const Group& group = groups_[g];
      pack(at<float>(call_.x), call_.in_features, group.rows.data(), rows_of(group),
           call_.in_features, act_.data() + group.act_at);
    }
    share.barrier("experts: pack");
    const int tiles = (call_.width + kTileRows / 2 - 1) / (kTileRows / 2);
    const int begin = share.begin(tiles * count_), end = share.end(tiles * count_);
    for (int g = begin / tiles; g < count_ && g * tiles < end; ++g) {
      gate_up(groups_[g], std::max(begin - g * tiles, 0), std::min(end - g * tiles, tiles));
    }
    share.barrier("experts: gate and up");
    for (int g = share.begin(count_); g < share.end(count_); ++g) {
      const Group& group = groups_[g];
      pack(hidden_.data() + group.hidden_at, call_.width, nullptr, rows_of(group), call_.width,
           down_.data() + group.down_at);
    }
    share.barrier("experts: pack hidden");
    const int down_tiles = tiles_of(call_.in_features);
    for (int g = 0; g < count_; ++g) {
      down(groups_[g], share.begin(down_tiles), share.end(down_tiles));
    }
  }

 private:
  static int rows_of(const Group& group) { return static_cast<int>(group.rows.size()); }
  const std::uint8_t* block(const Group& group) const {
    return at<std::uint8_t>(call_.data) + group.expert * call_.expert_bytes;
  }

  void gate_up(const Group& group, int begin, int end) {
    const std::uint8_t* data = block(group);
    float* y = hidden_.data() + group.hidden_at;
    const void* act = act_.data() + group.act_at;
    if (call_.mxfp4) {
      table_.fp4_gate_up({data + call_.w13_offset, data + call_.w13_scale_offset, act, y,
                          call_.width, rows_of(group), call_.in_features, call_.width, begin, end,
                          activation_});
    } else {
      table_.gate_up({reinterpret_cast<const bf16_t*>(data + call_.w13_offset), act, y, call_.width,
                      rows_of(group), call_.in_features, call_.width, begin, end, activation_});
    }
  }

  void down(const Group& group, int begin, int end) {
    const std::uint8_t* data = block(group);
    const void* act = down_.data() + group.down_at;
    const Scatter scatter{group.rows.data(), group.scale.data()};
    if (call_.mxfp4) {
      table_.fp4_scatter(
          {data + call_.w2_offset, data + call_.w2_scale_offset, act, at<float>(call_.y),
           call_.in_features, rows_of(group), call_.width, call_.in_features, begin, end},
          scatter);
    } else {
      table_.linear_scatter(
          {reinterpret_cast<const bf16_t*>(data + call_.w2_offset), act, at<float>(call_.y),
           call_.in_features, rows_of(group), call_.width, call_.in_features, begin, end},
          scatter);
    }
  }

  const ExpertsCall& call_;
  const Activation& activation_;
  const KernelTable& table_ = kernels();
  Group* groups_;
  int count_;
  std::vector<float> hidden_;
  std::vector<std::uint8_t> act_, down_;
};

// Rows times experts one batch holds: bounds the hidden activations of a long prefill.
constexpr std::size_t kBatchRows = 1024;

void run_experts(const ExpertsCall& call, const Activation& activation, Team* team) {
  const std::int64_t size = static_cast<std::int64_t>(call.rows) * call.in_features;
  std::fill_n(at<float>(call.y), size, 0.0f);
  std::vector<Group> groups = grouped(call);
  for (std::size_t begin = 0; begin < groups.size();) {
    std::size_t end = begin, rows = 0;
    while (end < groups.size() && (end == begin || rows + groups[end].rows.size() <= kBatchRows)) {
      rows += groups[end++].rows.size();
    }
    ExpertBatch batch(call, activation, groups.data() + begin, static_cast<int>(end - begin));
    auto body = [&](Share share) { batch.run(share); };
    on_team(team, body);
    begin = end;
  }
}

void bind_experts_call(nb::module_& m) {
  nb::class_<ExpertsCall>(m, "ExpertsCall")
      .def(nb::init<>())
      .def_rw("x", &ExpertsCall::x)
      .def_rw("y", &ExpertsCall::y)
      .def_rw("ids", &ExpertsCall::ids)
      .def_rw("weights", &ExpertsCall::weights)
      .def_rw("data", &ExpertsCall::data)
      .def_rw("expert_bytes", &ExpertsCall::expert_bytes)
      .def_rw("w13_offset", &ExpertsCall::w13_offset)
      .def_rw("w13_scale_offset", &ExpertsCall::w13_scale_offset)
      .def_rw("w2_offset", &ExpertsCall::w2_offset)
      .def_rw("w2_scale_offset", &ExpertsCall::w2_scale_offset)
      .def_rw("rows", &ExpertsCall::rows)
      .def_rw("chosen", &ExpertsCall::chosen)
      .def_rw("experts", &ExpertsCall::experts)
      .def_rw("in_features", &ExpertsCall::in_features)
      .def_rw("width", &ExpertsCall::width)
      .def_rw("mxfp4", &ExpertsCall::mxfp4);
}

}  // namespace

void bind_products(nb::module_& m) {
  nb::class_<Activation>(m, "Activation")
      .def(
          "__init__",
          [](Activation* self, bool situ, float beta, float linear_beta) {
            new (self) Activation{situ ? ActivationKind::kSitu : ActivationKind::kSwiGlu, beta,
                                  linear_beta};
          },
          nb::arg("situ"), nb::arg("beta"), nb::arg("linear_beta"));
  nb::class_<ProductCall>(m, "ProductCall")
      .def(nb::init<>())
      .def_rw("weight", &ProductCall::weight)
      .def_rw("x", &ProductCall::x)
      .def_rw("y", &ProductCall::y)
      .def_rw("rows", &ProductCall::rows)
      .def_rw("in_features", &ProductCall::in_features)
      .def_rw("out_features", &ProductCall::out_features)
      .def_rw("heads", &ProductCall::heads);
  bind_experts_call(m);
  const auto release = nb::call_guard<nb::gil_scoped_release>();
  const auto team = nb::arg("team").none();
  m.def("linear", &run_linear, nb::arg("call"), team, release);
  m.def("linear_fp32", &run_linear_fp32, nb::arg("call"), team, release);
  m.def("gate_up", &run_gate_up, nb::arg("call"), nb::arg("activation"), team, release);
  m.def("heads", &run_heads, nb::arg("call"), team, release);
  m.def("experts", &run_experts, nb::arg("call"), nb::arg("activation"), team, release);
}

}  // namespace stepfuse
