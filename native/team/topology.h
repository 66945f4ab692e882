// Processors as the team places threads on them: which share a core, a last-level cache, a node.
#pragma once

#include <string>
#include <vector>

namespace stepfuse {

struct Cpu {
  int id;
  int core;     // lowest processor id of its core: SMT siblings share it
  int complex;  // lowest processor id that shares its last-level cache
  int node;     // NUMA node, 0 where the system names none
};

struct Topology {
  std::vector<Cpu> cpus;  // only processors the process may run on, ascending id

  int cores() const;
  int complexes() const;
  int nodes() const;
};

// Reads `root`/devices/system (normally "/sys") for the processors in `allowed`. A file that is
// missing leaves the processor a core, complex and node of its own, 0 for the node.
Topology read_topology(const std::string& root, const std::vector<int>& allowed);

// The processors in this thread's affinity mask, ascending.
std::vector<int> allowed_cpus();

// One processor per member, ordered so that neighbours share a cache. Whole cores come before SMT
// siblings; within a node cores are taken from every complex in turn, since bandwidth grows with
// the number of complexes. More threads than processors: the list starts again.
std::vector<int> choose_cpus(const Topology& topology, int threads);

}  // namespace stepfuse
