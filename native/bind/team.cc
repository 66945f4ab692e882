#include "stepfuse/team.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "bind/bind.h"
#include "team/measure.h"
#include "team/topology.h"

namespace nb = nanobind;

namespace stepfuse {
namespace {

void make_team(Team* self, int threads, const std::optional<std::vector<int>>& cpus, bool pin,
               double spin_us, double stop_s) {
  if (cpus && static_cast<int>(cpus->size()) != threads) {
    throw std::invalid_argument("cpus: " + std::to_string(cpus->size()) + " processors for " +
                                std::to_string(threads) + " threads; give one per thread");
  }
  if (!(spin_us >= 0.0 && spin_us <= 1e6) || !(stop_s > 0.0 && stop_s <= 1e6)) {
    throw std::invalid_argument("spin_us wants 0 to 1e6, stop_s more than 0 and at most 1e6");
  }
  const TeamOptions options{threads, cpus ? cpus->data() : nullptr, pin,
                            static_cast<std::int64_t>(spin_us * 1e3),
                            static_cast<std::int64_t>(stop_s * 1e9)};
  nb::gil_scoped_release release;
  new (self) Team(options);
}

nb::dict bandwidth(Team& team, std::int64_t bytes, int passes) {
  std::vector<double> gbps;
  {
    nb::gil_scoped_release release;
    gbps = read_bandwidth(team, bytes, passes);
  }
  std::sort(gbps.begin(), gbps.end());
  nb::dict result;
  result["best_gbps"] = gbps.back();
  result["median_gbps"] = gbps[gbps.size() / 2];
  result["passes"] = static_cast<int>(gbps.size());
  result["threads"] = team.threads();
  return result;
}

nb::list topology(const std::string& root) {
  nb::list cpus;
  for (const Cpu& cpu : read_topology(root, allowed_cpus()).cpus) {
    nb::dict entry;
    entry["cpu"] = cpu.id;
    entry["core"] = cpu.core;
    entry["complex"] = cpu.complex;
    entry["node"] = cpu.node;
    cpus.append(entry);
  }
  return cpus;
}

}  // namespace

void bind_team(nb::module_& m) {
  nb::class_<Team>(m, "Team")
      .def("__init__", &make_team, nb::arg("threads"), nb::arg("cpus") = nb::none(),
           nb::arg("pin") = true, nb::arg("spin_us") = 50.0, nb::arg("stop_s") = 30.0)
      .def_prop_ro("threads", &Team::threads)
      .def_prop_ro("cpus", [](const Team& team) {
        return std::vector<int>(team.cpus(), team.cpus() + team.threads());
      });
  m.def("read_bandwidth", &bandwidth, nb::arg("team"), nb::arg("bytes") = std::int64_t{1} << 28,
        nb::arg("passes") = 8);
  m.def(
      "ping_pong",
      [](Team& team, int rounds) {
        nb::gil_scoped_release release;
        return ping_pong(team, rounds);
      },
      nb::arg("team"), nb::arg("rounds") = 20000);
  m.def("topology", &topology, nb::arg("root") = "/sys");
  m.def("cores", [] { return read_topology("/sys", allowed_cpus()).cores(); });
}

}  // namespace stepfuse
