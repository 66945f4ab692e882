// The step's memory: named regions in one block, laid out before the first run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stepfuse/team.h"

namespace stepfuse {

// Shared: one copy. Private: one copy per member, seen by that member only. External: memory of the
// caller (caches, logits), declared so that the program's check covers it.
enum class Sharing { kShared, kPrivate, kExternal };
enum class Element { kFp32, kInt32, kByte };

using Region = int;

struct RegionInfo {
  std::string name;
  Sharing sharing;
  Element element;
  std::vector<std::int64_t> shape;
  std::int64_t bytes;
  std::int64_t offset;  // in the shared part or in a member's part
};

// Where a region lies; `stride` is 0 for shared regions.
struct Buffer {
  std::byte* base = nullptr;
  std::int64_t stride = 0;

  template <class T>
  T* at(int member) const {
    return reinterpret_cast<T*>(base + stride * member);
  }
  float* fp32(int member) const { return at<float>(member); }
};

class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Before allocate(). A name is given once.
  Region add(const std::string& name, Sharing sharing, Element element,
             std::vector<std::int64_t> shape);
  void allocate(int members);
  // Each member writes its private part once, so that its pages lie on its own NUMA node.
  void touch(Team& team);
  // Fills everything with NaN: what a run reads without writing it first shows in its output.
  void poison();

  Buffer buffer(Region region) const;
  const RegionInfo& info(Region region) const { return regions_[region]; }
  Region find(const std::string& name) const;  // -1 where there is none
  int count() const { return static_cast<int>(regions_.size()); }
  int members() const { return members_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<RegionInfo> regions_;
  std::byte* block_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t shared_bytes_ = 0;
  std::int64_t private_bytes_ = 0;  // per member
  int members_ = 0;
};

}  // namespace stepfuse
