// Placement on machines this one is not: a written /sys tree stands for them.
#include "team/topology.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/check.h"

namespace {

namespace fs = std::filesystem;
using stepfuse::choose_cpus;
using stepfuse::read_topology;
using stepfuse::Topology;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text << "\n";
}

// Two nodes, two complexes each, two cores per complex, two threads per core: processor c and c + 8
// are siblings, as Linux numbers them.
fs::path simulated() {
  const fs::path root = fs::temp_directory_path() / "stepfuse_topology_test";
  fs::remove_all(root);
  const fs::path system = root / "devices/system";
  for (int id = 0; id < 16; ++id) {
    const int core = id % 8, low = core / 2 * 2;
    const fs::path cpu = system / ("cpu/cpu" + std::to_string(id));
    write(cpu / "topology/thread_siblings_list",
          std::to_string(core) + "," + std::to_string(core + 8));
    write(cpu / "cache/index0/level", "1");
    write(cpu / "cache/index0/shared_cpu_list",
          std::to_string(core) + "," + std::to_string(core + 8));
    write(cpu / "cache/index3/level", "3");
    write(cpu / "cache/index3/shared_cpu_list",
          std::to_string(low) + "-" + std::to_string(low + 1) + "," + std::to_string(low + 8) +
              "-" + std::to_string(low + 9));
  }
  write(system / "node/online", "0-1");
  write(system / "node/node0/cpulist", "0-3,8-11");
  write(system / "node/node1/cpulist", "4-7,12-15");
  return root;
}

std::vector<int> range(int end) {
  std::vector<int> ids;
  for (int i = 0; i < end; ++i) ids.push_back(i);
  return ids;
}

}  // namespace

int main() {
  const fs::path root = simulated();
  const Topology all = read_topology(root, range(16));
  CHECK(all.cores() == 8 && all.complexes() == 4 && all.nodes() == 2);
  // One node first, and its two complexes before a complex twice.
  CHECK((choose_cpus(all, 2) == std::vector<int>{0, 2}));
  CHECK((choose_cpus(all, 4) == std::vector<int>{0, 1, 2, 3}));
  // All cores before any sibling; neighbours share a complex.
  CHECK(choose_cpus(all, 8) == range(8));
  CHECK((choose_cpus(all, 9) == std::vector<int>{0, 1, 8, 2, 3, 4, 5, 6, 7}));
  const std::vector<int> every = choose_cpus(all, 16);
  CHECK(std::set<int>(every.begin(), every.end()).size() == 16);
  // More threads than processors start again.
  CHECK(choose_cpus(all, 20).size() == 20);
  CHECK(choose_cpus(all, 20)[16] == every[0]);
  // Only allowed processors count.
  const Topology some = read_topology(root, {5, 13, 6});
  CHECK(some.cores() == 2 && some.complexes() == 2 && some.nodes() == 1);
  CHECK((choose_cpus(some, 2) == std::vector<int>{5, 6}));
  // A tree without files: every processor stands alone.
  const Topology bare = read_topology(root / "missing", {0, 3});
  CHECK(bare.cores() == 2 && bare.complexes() == 2 && bare.nodes() == 1);
  const Topology here = read_topology("/sys", stepfuse::allowed_cpus());
  CHECK(!here.cpus.empty() && here.cores() >= 1);
  fs::remove_all(root);
  return stepfuse::test::report();
}
