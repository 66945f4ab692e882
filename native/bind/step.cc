#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bind/bind.h"
#include "bind/step_inputs.h"
#include "stepfuse/level.h"

namespace nb = nanobind;

namespace stepfuse {
namespace {

// address, page bytes, token bytes, tokens per page, 0 BF16 or 1 FP8
using LatentTuple = std::tuple<std::uintptr_t, std::int64_t, std::int64_t, int, int>;
// state address and stride, conv address and stride (strides in elements)
using StateTuple = std::tuple<std::uintptr_t, std::int64_t, std::uintptr_t, std::int64_t>;

const KernelTable* table_named(const std::string& name) {
  for (Level level : {Level::kScalar, Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16}) {
    if (name != level_name(level)) continue;
    if (const KernelTable* table = level_table(level)) return table;
    throw nb::value_error(("level '" + name + "' cannot run on this processor").c_str());
  }
  throw nb::value_error(("level '" + name + "' is not known").c_str());
}

void make_step(DecodeStep* self, const nb::dict& geometry, const nb::dict& weights, Team& team,
               const std::string& level, bool fuse_heads) {
  StepInputs inputs = read_step_inputs(geometry, weights);
  inputs.kernels = table_named(level);
  inputs.team = &team;
  inputs.fuse_heads = fuse_heads;
  new (self) DecodeStep(std::move(inputs));
}

template <class T>
T* pointer(std::uintptr_t address, const char* what) {
  if (address == 0) throw nb::value_error((std::string(what) + ": a null address").c_str());
  return reinterpret_cast<T*>(address);
}

void bind_caches(DecodeStep& step, const std::vector<LatentTuple>& latent,
                 const std::vector<StateTuple>& state, int pages, int slots) {
  BoundCaches caches{{}, {}, pages, slots};
  for (const auto& [base, page_bytes, token_bytes, page_tokens, dtype] : latent) {
    if (page_tokens < 1) throw nb::value_error("latent view: a page holds at least one token");
    caches.latent.push_back({pointer<std::uint8_t>(base, "latent view"), page_bytes, token_bytes,
                             page_tokens, static_cast<KvDtype>(dtype)});
  }
  for (const auto& [base, stride, conv, conv_stride] : state) {
    caches.state.push_back({pointer<float>(base, "state view"), stride,
                            pointer<bf16_t>(conv, "conv view"), conv_stride});
  }
  step.bind_caches(std::move(caches));
}

void bind_batch(DecodeStep& step, std::uintptr_t token, std::uintptr_t position,
                std::uintptr_t slot, const std::tuple<std::uintptr_t, std::int64_t>& pages,
                std::uintptr_t logits) {
  StepBatch batch{};
  batch.token = pointer<std::int32_t>(token, "token");
  batch.position = pointer<std::int64_t>(position, "position");
  batch.slot = pointer<std::int32_t>(slot, "slot");
  batch.pages = pointer<std::int32_t>(std::get<0>(pages), "pages");
  batch.pages_stride = std::get<1>(pages);
  batch.logits = pointer<float>(logits, "logits");
  step.bind_batch(batch);
}

std::int64_t run_until(DecodeStep& step, int rows, int until) {
  const Refusal refusal = step.check_batch(rows);
  if (refusal.cache) throw nb::index_error(refusal.text.c_str());
  if (!refusal.text.empty()) throw nb::value_error(refusal.text.c_str());
  if (until < 0 || until > step.stages()) {
    throw nb::value_error(
        ("stage " + std::to_string(until) + " of " + std::to_string(step.stages())).c_str());
  }
  nb::gil_scoped_release release;
  return step.run(rows, until);
}

nb::list stages(const DecodeStep& step, const Arena& arena) {
  nb::list result;
  const auto names = [&](const std::vector<Use>& uses) {
    nb::list list;
    for (const Use& use : uses) list.append(arena.info(use.region).name);
    return list;
  };
  for (const Stage& stage : step.program().stages()) {
    nb::dict entry;
    entry["name"] = stage.name;
    entry["layer"] = stage.layer;
    entry["reads"] = names(stage.reads);
    entry["writes"] = names(stage.writes);
    entry["barrier"] = stage.barrier;
    result.append(entry);
  }
  return result;
}

nb::list trace(DecodeStep& step) {
  nb::list result;
  if (!step.trace().enabled()) throw nb::value_error("the trace is off; set_trace(True) first");
  for (int i = 0; i < step.stages(); ++i) {
    for (int member = 0; member < step.arena().members(); ++member) {
      const TraceEntry& entry = step.trace().entry(i, member);
      result.append(
          nb::make_tuple(step.program().stages()[i].name, member, entry.begin_ns, entry.end_ns));
    }
  }
  return result;
}

// The region as it lies in memory: private regions get a leading axis of members.
nb::object region(nb::handle self, const std::string& name) {
  DecodeStep& step = nb::cast<DecodeStep&>(self);
  const Region found = step.arena().find(name);
  if (found < 0) throw nb::key_error(name.c_str());
  const RegionInfo& info = step.arena().info(found);
  if (info.sharing == Sharing::kExternal) {
    throw nb::value_error(("region '" + name + "' is the caller's memory").c_str());
  }
  const bool own = info.sharing == Sharing::kPrivate;
  std::vector<std::size_t> shape;
  if (own) shape.push_back(step.arena().members());
  for (std::int64_t n : info.shape) shape.push_back(n);
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size() - 1; i > 0; --i) {
    strides[i - 1] = strides[i] * static_cast<std::int64_t>(shape[i]);
  }
  const Buffer buffer = step.arena().buffer(found);
  const bool bytes = info.element == Element::kByte;
  if (own) strides[0] = buffer.stride / (bytes ? 1 : 4);
  const nb::dlpack::dtype dtype = bytes                             ? nb::dtype<std::uint8_t>()
                                  : info.element == Element::kInt32 ? nb::dtype<std::int32_t>()
                                                                    : nb::dtype<float>();
  return nb::cast(
      nb::ndarray<nb::numpy>(buffer.base, shape.size(), shape.data(), self, strides.data(), dtype));
}

}  // namespace

void bind_step(nb::module_& m) {
  nb::class_<DecodeStep>(m, "Step")
      .def("__init__", &make_step, nb::arg("geometry"), nb::arg("weights"), nb::arg("team"),
           nb::arg("level"), nb::arg("fuse_heads") = false, nb::keep_alive<1, 4>())
      .def("bind_caches", &bind_caches, nb::arg("latent"), nb::arg("state"), nb::arg("pages"),
           nb::arg("slots"))
      .def("bind_batch", &bind_batch, nb::arg("token"), nb::arg("position"), nb::arg("slot"),
           nb::arg("pages"), nb::arg("logits"))
      .def("run", [](DecodeStep& s, int rows) { return run_until(s, rows, s.stages()); })
      .def("run_until", &run_until, nb::arg("rows"), nb::arg("stages"))
      .def("stages", [](DecodeStep& s) { return stages(s, s.arena()); })
      .def("regions",
           [](DecodeStep& s) {
             std::vector<std::string> names;
             for (int i = 0; i < s.arena().count(); ++i) names.push_back(s.arena().info(i).name);
             return names;
           })
      .def("region", [](nb::handle self, const std::string& name) { return region(self, name); })
      .def("is_private",
           [](DecodeStep& s, const std::string& name) {
             const Region found = s.arena().find(name);
             return found >= 0 && s.arena().info(found).sharing == Sharing::kPrivate;
           })
      .def("poison", [](DecodeStep& s) { s.arena().poison(); })
      .def("set_trace",
           [](DecodeStep& s, bool on) {
             if (on) {
               s.trace().prepare(s.stages(), s.arena().members());
             } else {
               s.trace().clear();
             }
           })
      .def("trace", &trace)
      .def_prop_ro("barriers", [](DecodeStep& s) { return s.program().barriers(); })
      .def_prop_ro("fused_heads", &DecodeStep::fused_heads)
      .def_prop_ro("arena_bytes", [](DecodeStep& s) { return s.arena().bytes(); })
      .def_prop_ro("level", [](DecodeStep& s) { return std::string(s.kernels().name); });
}

}  // namespace stepfuse
