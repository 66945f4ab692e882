#include "step/arena.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <stdexcept>

namespace stepfuse {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kPage = 4096;

std::int64_t rounded(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::int64_t element_bytes(Element element) { return element == Element::kByte ? 1 : 4; }

struct Touch {
  std::byte* first;
  std::int64_t bytes;
};

void touch_task(void* context, Member member) {
  const Touch& touch = *static_cast<Touch*>(context);
  std::memset(touch.first + touch.bytes * member.index, 0, static_cast<std::size_t>(touch.bytes));
}

}  // namespace

Arena::~Arena() {
  if (block_ != nullptr) munmap(block_, static_cast<std::size_t>(bytes_));
}

Region Arena::add(const std::string& name, Sharing sharing, Element element,
                  std::vector<std::int64_t> shape) {
  if (block_ != nullptr || find(name) >= 0) {
    throw std::logic_error("region '" + name + "' is added twice or after the arena was laid out");
  }
  std::int64_t bytes = element_bytes(element);
  for (std::int64_t n : shape) bytes *= n;
  std::int64_t offset = 0;
  if (sharing != Sharing::kExternal) {
    std::int64_t& end = sharing == Sharing::kShared ? shared_bytes_ : private_bytes_;
    offset = end;
    end += rounded(bytes, kLine);
  }
  regions_.push_back({name, sharing, element, std::move(shape), bytes, offset});
  return count() - 1;
}

void Arena::allocate(int members) {
  members_ = members;
  shared_bytes_ = rounded(shared_bytes_, kPage);
  private_bytes_ = rounded(private_bytes_, kPage);
  bytes_ = shared_bytes_ + private_bytes_ * members + kPage;
  void* block = mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  madvise(block, static_cast<std::size_t>(bytes_), MADV_HUGEPAGE);
  block_ = static_cast<std::byte*>(block);
}

void Arena::touch(Team& team) {
  Touch touch{block_ + shared_bytes_, private_bytes_};
  team.run(touch_task, &touch);
}

void Arena::poison() { std::memset(block_, 0xFF, static_cast<std::size_t>(bytes_)); }

Buffer Arena::buffer(Region region) const {
  const RegionInfo& info = regions_[region];
  if (info.sharing == Sharing::kExternal) return {};
  if (info.sharing == Sharing::kShared) return {block_ + info.offset, 0};
  return {block_ + shared_bytes_ + info.offset, private_bytes_};
}

Region Arena::find(const std::string& name) const {
  for (int i = 0; i < count(); ++i) {
    if (regions_[i].name == name) return i;
  }
  return -1;
}

}  // namespace stepfuse
