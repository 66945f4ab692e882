#include "step/kernel_bench.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "bind/bind.h"
#include "stepfuse/level.h"

namespace nb = nanobind;

namespace stepfuse {
namespace {

constexpr const char* kOps[] = {"bf16", "gate_up", "fp4", "fp4_gate_up", "kda"};

KernelCase::Op op_of(const std::string& name) {
  for (int i = 0; i < 5; ++i) {
    if (name == kOps[i]) return static_cast<KernelCase::Op>(i);
  }
  throw std::invalid_argument("op '" + name + "' is not bf16, gate_up, fp4, fp4_gate_up or kda");
}

const KernelTable* table_of(const std::string& name) {
  for (const Level level : {Level::kScalar, Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16}) {
    if (name == level_name(level) && level_table(level) != nullptr) return level_table(level);
  }
  throw std::invalid_argument("level '" + name + "' cannot run here");
}

// shape: rows, in, out, bytes, repeats. Returns (bytes, ns, floor ns) per repeat.
std::vector<std::tuple<std::int64_t, double, double>> time_kernel(
    KernelBench& bench, const std::string& op, const std::string& level,
    const std::tuple<int, int, int, std::int64_t, int>& shape) {
  const auto& [rows, in, out, bytes, repeats] = shape;
  const bool fp4 = op == "fp4" || op == "fp4_gate_up";
  if (rows < 1 || repeats < 1 || in < kTileRows || in % (fp4 ? kFp4Group : 2) != 0 || out < 1 ||
      (op != "kda" && out % kTileRows != 0) || (op == "kda" && in % kTileRows != 0)) {
    throw std::invalid_argument("rows, in, out of the case do not fit the kernels' tiles");
  }
  const KernelCase c{op_of(op), table_of(level), rows, in, out, bytes};
  std::vector<std::tuple<std::int64_t, double, double>> result;
  nb::gil_scoped_release release;
  for (const KernelTime& t : bench.time(c, repeats)) result.emplace_back(t.bytes, t.ns, t.floor_ns);
  return result;
}

}  // namespace

void bind_kernel_bench(nb::module_& m) {
  nb::class_<KernelBench>(m, "KernelBench")
      .def(nb::init<Team*, std::int64_t>(), nb::arg("team"), nb::arg("bytes"),
           nb::keep_alive<1, 2>())
      .def("time", &time_kernel, nb::arg("op"), nb::arg("level"), nb::arg("shape"));
}

}  // namespace stepfuse
