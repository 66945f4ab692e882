#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind/bind.h"
#include "bind/calls.h"
#include "stepfuse/level.h"

namespace nb = nanobind;

namespace stepfuse {

void bind_products(nb::module_& m);   // products.cc
void bind_attention(nb::module_& m);  // attention.cc

namespace {

std::atomic<const KernelTable*> current{nullptr};

constexpr Level kLevels[] = {Level::kScalar, Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16};

std::vector<std::string> supported() {
  std::vector<std::string> names;
  for (const Level level : kLevels) {
    if (level_table(level) != nullptr) names.emplace_back(level_name(level));
  }
  return names;
}

void set_level(const std::string& name) {
  for (const Level level : kLevels) {
    if (name != level_name(level)) continue;
    const KernelTable* table = level_table(level);
    if (table == nullptr) {
      throw std::invalid_argument("level '" + name + "' cannot run on this processor or build");
    }
    current = table;
    return;
  }
  throw std::invalid_argument("level '" + name +
                              "' is unknown; scalar, avx2, avx512, avx512_bf16 are known");
}

void run_rms_norm(Address x, Address weight, Address out, std::vector<int> shape, float eps) {
  const int rows = shape.at(0), n = shape.at(1);
  for (int r = 0; r < rows; ++r) {
    const std::int64_t row = static_cast<std::int64_t>(r) * n;
    kernels().rms_norm(at<float>(x) + row, at<bf16_t>(weight), n, eps, at<float>(out) + row);
  }
}

void run_attn_res(const MixCall& call) {
  std::vector<const float*> sources(static_cast<std::size_t>(call.count));
  for (int r = 0; r < call.rows; ++r) {
    for (int s = 0; s < call.count; ++s) {
      const std::int64_t row = static_cast<std::int64_t>(s) * call.rows + r;
      sources[static_cast<std::size_t>(s)] = at<float>(call.sources) + row * call.n;
    }
    kernels().attn_res({sources.data(), call.count, call.n, at<bf16_t>(call.norm),
                        at<bf16_t>(call.proj), call.eps,
                        at<float>(call.out) + static_cast<std::int64_t>(r) * call.n});
  }
}

void run_router(const RouterCall& call) {
  for (int r = 0; r < call.rows; ++r) {
    const std::int64_t chosen = static_cast<std::int64_t>(r) * call.chosen;
    kernels().router_select({at<float>(call.logits) + static_cast<std::int64_t>(r) * call.experts,
                             at<float>(call.bias), at<std::int32_t>(call.ids) + chosen,
                             at<float>(call.weights) + chosen, call.experts, call.chosen,
                             call.scaling, call.renormalize});
  }
}

void bind_levels(nb::module_& m) {
  m.def("levels", &supported);
  m.def("level", [] { return std::string(kernels().name); });
  m.def("set_level", &set_level, nb::arg("name"));
  m.def("argmax", [](Address x, int n) { return kernels().argmax(at<float>(x), n); });
  m.def("sigmoid_gate", [](Address gate, int n, Address x) {
    kernels().sigmoid_gate(at<float>(gate), n, at<float>(x));
  });
  m.def("add", [](Address a, Address b, int n, Address out) {
    kernels().add(at<float>(a), at<float>(b), n, at<float>(out));
  });
  m.def("widen",
        [](Address x, int n, Address out) { kernels().widen(at<bf16_t>(x), n, at<float>(out)); });
}

}  // namespace

const KernelTable& kernels() {
  const KernelTable* table = current;
  return table != nullptr ? *table : *level_table(level_best());
}

void bind_ops(nb::module_& m) {
  bind_levels(m);
  m.def("rms_norm", &run_rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("out"),
        nb::arg("shape"), nb::arg("eps"), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<MixCall>(m, "MixCall")
      .def(nb::init<>())
      .def_rw("sources", &MixCall::sources)
      .def_rw("norm", &MixCall::norm)
      .def_rw("proj", &MixCall::proj)
      .def_rw("out", &MixCall::out)
      .def_rw("count", &MixCall::count)
      .def_rw("rows", &MixCall::rows)
      .def_rw("n", &MixCall::n)
      .def_rw("eps", &MixCall::eps);
  m.def("attn_res", &run_attn_res, nb::arg("call"), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<RouterCall>(m, "RouterCall")
      .def(nb::init<>())
      .def_rw("logits", &RouterCall::logits)
      .def_rw("bias", &RouterCall::bias)
      .def_rw("ids", &RouterCall::ids)
      .def_rw("weights", &RouterCall::weights)
      .def_rw("rows", &RouterCall::rows)
      .def_rw("experts", &RouterCall::experts)
      .def_rw("chosen", &RouterCall::chosen)
      .def_rw("scaling", &RouterCall::scaling)
      .def_rw("renormalize", &RouterCall::renormalize);
  m.def("route", &run_router, nb::arg("call"), nb::call_guard<nb::gil_scoped_release>());
  bind_products(m);
  bind_attention(m);
}

}  // namespace stepfuse
