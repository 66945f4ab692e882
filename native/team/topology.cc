#include "team/topology.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

namespace stepfuse {
namespace {

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "0-3,8" as the kernel writes processor lists; what cannot be read is left out.
std::vector<int> parse_list(const std::string& text) {
  std::vector<int> ids;
  std::stringstream parts(text);
  std::string part;
  while (std::getline(parts, part, ',')) {
    std::stringstream range(part);
    int first = 0;
    if (!(range >> first)) continue;
    int last = first;
    char dash = 0;
    if (range >> dash && dash == '-') range >> last;
    for (int id = first; id <= last; ++id) ids.push_back(id);
  }
  return ids;
}

int lowest(const std::vector<int>& ids, int otherwise) {
  return ids.empty() ? otherwise : *std::min_element(ids.begin(), ids.end());
}

int complex_of(const std::string& cpu_dir, int id) {
  int best_level = 0;
  int complex = id;
  for (int index = 0; index < 8; ++index) {
    const std::string cache = cpu_dir + "/cache/index" + std::to_string(index);
    const int level = std::atoi(read_line(cache + "/level").c_str());
    if (level <= best_level) continue;
    best_level = level;
    complex = lowest(parse_list(read_line(cache + "/shared_cpu_list")), id);
  }
  return complex;
}

std::map<int, int> read_nodes(const std::string& system) {
  std::map<int, int> node_of;
  for (int node : parse_list(read_line(system + "/node/online"))) {
    const std::string list = system + "/node/node" + std::to_string(node) + "/cpulist";
    for (int id : parse_list(read_line(list))) node_of[id] = node;
  }
  return node_of;
}

template <class Key>
int count_distinct(const std::vector<Cpu>& cpus, Key key) {
  std::set<int> seen;
  for (const Cpu& cpu : cpus) seen.insert(key(cpu));
  return static_cast<int>(seen.size());
}

}  // namespace

int Topology::cores() const {
  return count_distinct(cpus, [](const Cpu& c) { return c.core; });
}
int Topology::complexes() const {
  return count_distinct(cpus, [](const Cpu& c) { return c.complex; });
}
int Topology::nodes() const {
  return count_distinct(cpus, [](const Cpu& c) { return c.node; });
}

Topology read_topology(const std::string& root, const std::vector<int>& allowed) {
  const std::string system = root + "/devices/system";
  const std::map<int, int> node_of = read_nodes(system);
  Topology topology;
  for (int id : allowed) {
    const std::string dir = system + "/cpu/cpu" + std::to_string(id);
    const auto siblings = parse_list(read_line(dir + "/topology/thread_siblings_list"));
    const auto node = node_of.find(id);
    topology.cpus.push_back(
        {id, lowest(siblings, id), complex_of(dir, id), node == node_of.end() ? 0 : node->second});
  }
  return topology;
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> ids;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int id = 0; id < CPU_SETSIZE; ++id) {
    if (CPU_ISSET(id, &set)) ids.push_back(id);
  }
  return ids;
}

std::vector<int> choose_cpus(const Topology& topology, int threads) {
  // Rank of a processor: (SMT round, node, turn within its complex, complex, id).
  std::map<int, int> in_core, in_complex;
  std::vector<std::tuple<int, int, int, int, int>> order;
  for (const Cpu& cpu : topology.cpus) {
    const int round = in_core[cpu.core]++;
    const int turn = in_complex[cpu.complex]++;
    order.emplace_back(round, cpu.node, turn, cpu.complex, cpu.id);
  }
  std::sort(order.begin(), order.end());
  const int distinct = std::min<int>(threads, static_cast<int>(order.size()));
  order.resize(distinct);
  std::vector<std::tuple<int, int, int>> placed;
  for (const auto& [round, node, turn, complex, id] : order) placed.emplace_back(node, complex, id);
  std::sort(placed.begin(), placed.end());
  std::vector<int> cpus;
  for (int i = 0; i < threads && distinct > 0; ++i)
    cpus.push_back(std::get<2>(placed[i % distinct]));
  return cpus;
}

}  // namespace stepfuse
