#include "step/kernel_bench.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <random>
#include <stdexcept>

#include "team/wait_word.h"

namespace stepfuse {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kAhead = 4096;
// Sign, the low exponent bit's neighbourhood of 1, and mantissa bits: finite and normal as BF16 and
// FP32; no byte is the E8M0 NaN.
constexpr std::uint64_t kRandomBits = 0x807f807f807f807full;
constexpr std::uint64_t kFixedBits = 0x3f003f003f003f00ull;

struct Fill {
  std::uint64_t* words;
  std::int64_t count;
};

void fill_task(void* context, Member member) {
  const Fill& fill = *static_cast<Fill*>(context);
  std::mt19937_64 random(static_cast<std::uint64_t>(member.index));
  const std::int64_t end = fill.count * (member.index + 1) / member.count;
  for (std::int64_t i = fill.count * member.index / member.count; i < end; ++i) {
    fill.words[i] = (random() & kRandomBits) | kFixedBits;
  }
}

struct Sweep {
  std::uint64_t* words;
  std::int64_t lines;
  bool write;
  std::atomic<std::uint64_t> sink{0};
};

void sweep_task(void* context, Member member) {
  Sweep& sweep = *static_cast<Sweep*>(context);
  const std::int64_t end = sweep.lines * (member.index + 1) / member.count;
  std::uint64_t sum[8] = {};
  for (std::int64_t i = sweep.lines * member.index / member.count; i < end; ++i) {
    std::uint64_t* line = sweep.words + i * 8;
    __builtin_prefetch(reinterpret_cast<const char*>(line) + kAhead);
    for (int j = 0; j < 8; ++j) {
      sum[j] ^= line[j];
      if (sweep.write) line[j] ^= 1;
    }
  }
  std::uint64_t all = 0;
  for (const std::uint64_t part : sum) all ^= part;
  sweep.sink.fetch_xor(all, std::memory_order_relaxed);
}

// Everything one timed pass reads and writes besides the block; a set per member.
struct Buffers {
  std::vector<std::byte> act;
  std::vector<float> y, x;
  std::vector<bf16_t> conv;
};

bool is_fp4(KernelCase::Op op) {
  return op == KernelCase::Op::kFp4 || op == KernelCase::Op::kFp4GateUp;
}

// Bytes of one matrix of the case, or of one slot's state.
std::int64_t unit_bytes(const KernelCase& c) {
  const std::int64_t elements = std::int64_t{c.in} * c.out;
  if (c.op == KernelCase::Op::kKda) return elements * c.in * 4;
  return is_fp4(c.op) ? elements / 2 + elements / kFp4Group : elements * 2;
}

struct Pass {
  const KernelCase* c;
  std::byte* begin;
  std::int64_t units;
  std::vector<Buffers>* buffers;
};

void multiply(const KernelCase& c, std::byte* weight, Buffers& b) {
  const auto* words = reinterpret_cast<const bf16_t*>(weight);
  const auto* nibbles = reinterpret_cast<const std::uint8_t*>(weight);
  const std::uint8_t* scales = nibbles + std::int64_t{c.in} * c.out / 2;
  const Activation situ{ActivationKind::kSitu, 4.0f, 25.0f};
  const int tiles = c.out / kTileRows, width = c.out / 2;
  float* y = b.y.data();
  const void* act = b.act.data();
  switch (c.op) {
    case KernelCase::Op::kBf16:
      return c.kernels->linear({words, act, y, c.out, c.rows, c.in, c.out, 0, tiles});
    case KernelCase::Op::kGateUp:
      return c.kernels->gate_up({words, act, y, width, c.rows, c.in, width, 0, tiles, situ});
    case KernelCase::Op::kFp4:
      return c.kernels->fp4_linear({nibbles, scales, act, y, c.out, c.rows, c.in, c.out, 0, tiles});
    default:
      return c.kernels->fp4_gate_up(
          {nibbles, scales, act, y, width, c.rows, c.in, width, 0, tiles, situ});
  }
}

void advance(const KernelCase& c, std::byte* state, Buffers& b) {
  const float* x = b.x.data();
  KdaArgs args{x,
               x,
               x,
               x,
               x,
               x,
               x,
               x,
               x,
               x,
               b.conv.data(),
               reinterpret_cast<float*>(state),
               b.y.data(),
               c.out,
               c.in,
               0,
               c.out,
               -5.0f,
               1e-5f};
  c.kernels->kda(args);
}

void pass_task(void* context, Member member) {
  const Pass& pass = *static_cast<Pass*>(context);
  const KernelCase& c = *pass.c;
  Buffers& own = (*pass.buffers)[static_cast<std::size_t>(member.index)];
  const std::int64_t bytes = unit_bytes(c), end = pass.units * (member.index + 1) / member.count;
  for (std::int64_t i = pass.units * member.index / member.count; i < end; ++i) {
    std::byte* unit = pass.begin + i * bytes;
    c.op == KernelCase::Op::kKda ? advance(c, unit, own) : multiply(c, unit, own);
  }
}

Buffers buffers_of(const KernelCase& c) {
  Buffers b;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const bool kda = c.op == KernelCase::Op::kKda;
  const std::size_t width = static_cast<std::size_t>(c.in) * static_cast<std::size_t>(c.out);
  b.x.resize(kda ? 12 * width : static_cast<std::size_t>(c.rows) * c.in);
  for (float& value : b.x) value = uniform(random);
  b.y.resize(kda ? width : static_cast<std::size_t>(c.rows) * c.out);
  if (kda) {
    b.conv.resize(9 * width);
    return b;
  }
  b.act.resize(c.kernels->act_bytes(c.in, c.rows));
  const auto pack = is_fp4(c.op) ? c.kernels->pack_fp4 : c.kernels->pack_pairs;
  pack(b.x.data(), c.in, nullptr, c.rows, c.in, b.act.data());
  return b;
}

}  // namespace

KernelBench::KernelBench(Team* team, std::int64_t bytes) : team_(team), bytes_(bytes) {
  // Prefetches reach past the end, which never faults.
  void* block = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  madvise(block, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  block_ = static_cast<std::byte*>(block);
  Fill fill{reinterpret_cast<std::uint64_t*>(block), bytes / 8};
  team->run(fill_task, &fill);
}

KernelBench::~KernelBench() { munmap(block_, static_cast<std::size_t>(bytes_)); }

double KernelBench::floor(const KernelCase& c, std::int64_t begin, std::int64_t bytes) {
  Sweep sweep{reinterpret_cast<std::uint64_t*>(block_ + begin), bytes / kLine,
              c.op == KernelCase::Op::kKda};
  const std::int64_t start = clock_ns();
  team_->run(sweep_task, &sweep);
  return static_cast<double>(clock_ns() - start);
}

std::vector<KernelTime> KernelBench::time(const KernelCase& c, int repeats) {
  const std::int64_t unit = unit_bytes(c);
  const std::int64_t units = std::max<std::int64_t>(team_->threads(), c.bytes / unit);
  const std::int64_t bytes = units * unit, places = bytes_ / bytes;
  if (places < 2) {
    throw std::invalid_argument(std::to_string(bytes) + " bytes twice in a block of " +
                                std::to_string(bytes_));
  }
  std::vector<Buffers> buffers;
  for (int i = 0; i < team_->threads(); ++i) buffers.push_back(buffers_of(c));
  std::vector<KernelTime> times;
  // What one repeat reads has left the caches by the time it is read again.
  for (int i = 0; i < repeats; ++i) {
    const auto place = [&](int step) { return (3 * i + step) % places * bytes; };
    const double before = floor(c, place(0), bytes);
    Pass pass{&c, block_ + place(1), units, &buffers};
    const std::int64_t start = clock_ns();
    team_->run(pass_task, &pass);
    const auto ns = static_cast<double>(clock_ns() - start);
    times.push_back({bytes, ns, (before + floor(c, place(2), bytes)) / 2});
  }
  return times;
}

}  // namespace stepfuse
