#include "bind/step_inputs.h"

#include <string>

namespace nb = nanobind;

namespace stepfuse {
namespace {

constexpr std::uintptr_t kAlign = 64;

template <class T>
T field(const nb::dict& geometry, const char* name) {
  if (!geometry.contains(name)) {
    throw nb::value_error(("geometry: '" + std::string(name) + "' is missing").c_str());
  }
  return nb::cast<T>(geometry[name]);
}

// Addresses below one prefix of the dict.
class Addresses {
 public:
  Addresses(const nb::dict& weights, std::string prefix)
      : weights_(weights), prefix_(std::move(prefix)) {}

  template <class T>
  const T* need(const char* name) const {
    const std::string key = prefix_ + name;
    const std::uintptr_t address =
        weights_.contains(key.c_str()) ? nb::cast<std::uintptr_t>(weights_[key.c_str()]) : 0;
    if (address == 0) refuse(key, "is missing or null");
    if (address % kAlign != 0) refuse(key, "is not 64-byte aligned");
    return reinterpret_cast<const T*>(address);
  }
  const bf16_t* bf16(const char* name) const { return need<bf16_t>(name); }
  const bf16_t* bf16_if(bool wanted, const char* name) const {
    return wanted ? need<bf16_t>(name) : nullptr;
  }
  const float* fp32(const char* name) const { return need<float>(name); }
  std::int64_t number(const char* name) const {
    const std::string key = prefix_ + name;
    if (!weights_.contains(key.c_str())) refuse(key, "is missing");
    return nb::cast<std::int64_t>(weights_[key.c_str()]);
  }
  Addresses below(const std::string& name) const { return {weights_, prefix_ + name + "."}; }

 private:
  [[noreturn]] static void refuse(const std::string& key, const char* why) {
    throw nb::value_error(("weights: '" + key + "' " + why).c_str());
  }

  const nb::dict& weights_;
  std::string prefix_;
};

Geometry read_geometry(const nb::dict& d) {
  Geometry g{};
  const auto number = [&](const char* name) { return field<int>(d, name); };
  g.hidden = number("hidden");
  g.vocab = number("vocab");
  g.layers = number("layers");
  g.max_rows = number("max_rows");
  g.norm_eps = field<float>(d, "norm_eps");
  g.attn_res_block = number("attn_res_block");
  g.activation = {static_cast<ActivationKind>(number("activation_kind")),
                  field<float>(d, "activation_beta"), field<float>(d, "activation_linear_beta")};
  g.kda_heads = number("kda_heads");
  g.kda_dim = number("kda_dim");
  g.decay_rank = number("decay_rank");
  g.gate_rank = number("gate_rank");
  g.gate_lower_bound = field<float>(d, "gate_lower_bound");
  g.mla_heads = number("mla_heads");
  g.q_lora = number("q_lora");
  g.kv_lora = number("kv_lora");
  g.nope = number("nope");
  g.rope = number("rope");
  g.v_dim = number("v_dim");
  g.mla_output_gate = field<bool>(d, "mla_output_gate");
  g.dense_width = number("dense_width");
  g.experts = number("experts");
  g.top_k = number("top_k");
  g.expert_width = number("expert_width");
  g.shared_width = number("shared_width");
  g.latent = number("latent");
  g.routed_scaling = field<float>(d, "routed_scaling");
  g.renormalize = field<bool>(d, "renormalize");
  g.expert_format = static_cast<ExpertFormat>(number("expert_format"));
  return g;
}

KdaWeights read_kda(const Geometry& g, const Addresses& at) {
  KdaWeights w{};
  w.q = at.bf16("q");
  w.k = at.bf16("k");
  w.v = at.bf16("v");
  w.f_a = at.bf16("f_a");
  w.f_b = at.bf16("f_b");
  w.b = at.bf16("b");
  w.g = at.bf16_if(g.gate_rank == 0, "g");
  w.g_a = at.bf16_if(g.gate_rank > 0, "g_a");
  w.g_b = at.bf16_if(g.gate_rank > 0, "g_b");
  w.o = at.bf16("o");
  w.conv = at.fp32("conv");
  w.a_log = at.fp32("a_log");
  w.dt_bias = at.fp32("dt_bias");
  w.o_norm = at.fp32("o_norm");
  return w;
}

MlaWeights read_mla(const Geometry& g, const Addresses& at) {
  MlaWeights w{};
  w.q_a = at.bf16_if(g.q_lora > 0, "q_a");
  w.q_a_norm = at.bf16_if(g.q_lora > 0, "q_a_norm");
  w.q_b = at.bf16("q_b");
  w.kv_a = at.bf16("kv_a");
  w.kv_a_norm = at.bf16("kv_a_norm");
  w.w_uk = at.bf16("w_uk");
  w.w_uv = at.bf16("w_uv");
  w.g = at.bf16_if(g.mla_output_gate, "g");
  w.o = at.bf16("o");
  return w;
}

MoeWeights read_moe(const Geometry& g, const Addresses& at, bool latent_norm) {
  MoeWeights w{};
  w.router = at.bf16("router");
  w.bias = at.fp32("bias");
  w.latent_down = at.bf16_if(g.latent > 0, "latent_down");
  w.latent_norm = at.bf16_if(latent_norm, "latent_norm");
  w.latent_up = at.bf16_if(g.latent > 0, "latent_up");
  w.shared_gate_up = at.bf16_if(g.shared_width > 0, "shared_gate_up");
  w.shared_down = at.bf16_if(g.shared_width > 0, "shared_down");
  w.experts = at.need<std::uint8_t>("experts");
  w.expert_bytes = at.number("expert_bytes");
  w.w13_offset = at.number("w13_offset");
  w.w13_scale_offset = at.number("w13_scale_offset");
  w.w2_offset = at.number("w2_offset");
  w.w2_scale_offset = at.number("w2_scale_offset");
  return w;
}

LayerWeights read_layer(const StepInputs& in, const Addresses& at, const nb::dict& geometry,
                        int layer) {
  const Geometry& g = in.geometry;
  LayerWeights w{};
  w.is_mla = nb::cast<bool>(nb::cast<nb::list>(geometry["mla"])[layer]);
  w.is_dense = nb::cast<bool>(nb::cast<nb::list>(geometry["dense"])[layer]);
  const bool mixed = g.attn_res_block > 0;
  w.input_norm = at.bf16("input_norm");
  w.post_norm = at.bf16("post_norm");
  w.attn_res_norm = at.bf16_if(mixed, "attn_res_norm");
  w.attn_res_proj = at.bf16_if(mixed, "attn_res_proj");
  w.mlp_res_norm = at.bf16_if(mixed, "mlp_res_norm");
  w.mlp_res_proj = at.bf16_if(mixed, "mlp_res_proj");
  if (w.is_mla) {
    w.mla = read_mla(g, at.below("mla"));
  } else {
    w.kda = read_kda(g, at.below("kda"));
  }
  if (w.is_dense) {
    w.dense = {at.below("dense").bf16("gate_up"), at.below("dense").bf16("down")};
  } else {
    w.moe = read_moe(g, at.below("moe"), field<bool>(geometry, "latent_norm"));
  }
  return w;
}

}  // namespace

StepInputs read_step_inputs(const nb::dict& geometry, const nb::dict& weights) {
  StepInputs in{};
  in.geometry = read_geometry(geometry);
  const Addresses at(weights, "");
  const bool mixed = in.geometry.attn_res_block > 0;
  in.model.embed = at.bf16("embed");
  in.model.final_norm = at.bf16("final_norm");
  in.model.lm_head = at.bf16("lm_head");
  in.model.output_res_norm = at.bf16_if(mixed, "output_res_norm");
  in.model.output_res_proj = at.bf16_if(mixed, "output_res_proj");
  for (const char* name : {"mla", "dense"}) {
    if (static_cast<int>(nb::len(field<nb::list>(geometry, name))) != in.geometry.layers) {
      throw nb::value_error(
          ("geometry: '" + std::string(name) + "' wants one bool per layer").c_str());
    }
  }
  for (int layer = 0; layer < in.geometry.layers; ++layer) {
    const Addresses below = at.below("layers." + std::to_string(layer));
    in.layers.push_back(read_layer(in, below, geometry, layer));
  }
  return in;
}

}  // namespace stepfuse
