"""What each key of a config.json is to stepfuse: read, pinned to one meaning, or harmless.

A key in none of these tables is refused by name: a newer member of the family may add one that
changes the computation. Sources: the released configs of Kimi-K3 and Kimi-Linear-48B and the form
transformers 5.24 saves (tests/golden/configs).
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Read in every form; the parser says where each one goes.
READ: Final = _words(
    """
    attn_res_block_size activation_situ_beta activation_situ_linear_beta bos_token_id eos_token_id
    first_k_dense_replace hidden_act hidden_size intermediate_size kv_lora_rank latent_moe_use_norm
    layer_types linear_attn_config linear_conv_kernel_dim linear_head_dim linear_num_heads
    max_position_embeddings mla_use_output_gate mlp_layer_types model_max_length model_type
    moe_intermediate_size moe_renormalize num_attention_heads num_experts num_experts_per_token
    num_hidden_layers num_key_value_heads num_shared_experts q_lora_rank qk_head_dim
    qk_nope_head_dim qk_rope_head_dim quantization_config rms_norm_eps routed_expert_hidden_size
    routed_scaling_factor v_head_dim vocab_size
    """
)

# Keys with one value stepfuse implements; any other value is refused by name.
PINNED: Final[dict[str, tuple[object, ...]]] = {
    "add_cross_attention": (False,),
    "attention_bias": (False,),
    "is_encoder_decoder": (False,),
    "mla_use_nope": (True,),
    "moe_layer_freq": (1,),
    "moe_router_activation_func": ("sigmoid",),
    "num_expert_group": (1,),
    "num_nextn_predict_layers": (0,),
    "pruned_heads": ({}, None),
    "rope_scaling": (None,),
    "tie_encoder_decoder": (False,),
    "tie_word_embeddings": (False,),
    "topk_group": (1,),
    "topk_method": ("noaux_tc",),
}

# No value of these changes what decoding computes: bookkeeping of the exporter, defaults of
# another engine's sampler, training settings, rotation settings of attention that does not rotate.
# `use_grouped_topk` means nothing with the one group PINNED asks for.
HARMLESS: Final = _words(
    """
    _attn_implementation _name_or_path architectures attention_dropout auto_map bad_words_ids
    begin_suppress_tokens chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id head_dim id2label initializer_range is_decoder label2id
    length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_router_logits output_scores
    pad_token_id prefix pretraining_tp problem_type remove_invalid_values repetition_penalty
    return_dict return_dict_in_generate rope_parameters rope_theta sep_token_id suppress_tokens
    task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype
    torchscript transformers_version typical_p use_bfloat16 use_cache use_grouped_topk
    """
)

# The wrapper of K3 around `text_config`; what is not text is skipped.
WRAPPER_READ: Final = _words(
    "architectures bos_token_id eos_token_id model_type quantization_config text_config"
)
WRAPPER_HARMLESS: Final = HARMLESS | _words(
    "ignore_index image_placeholder media_placeholder_token_id vision_config"
)

LINEAR_ATTN_READ: Final = _words(
    """
    full_attn_layers gate_lower_bound head_dim kda_layers num_heads short_conv_kernel_size
    use_full_rank_gate
    """
)

# Inside `quantization_config`. `ignore` is not consulted: a tensor is packed where the file holds
# its `weight_packed`.
QUANTIZATION_READ: Final = _words(
    """
    config_groups format global_compression_ratio ignore kv_cache_scheme quant_method
    quantization_status sparsity_config transform_config version
    """
)

# Needed whatever the form.
REQUIRED: Final = _words(
    """
    hidden_act hidden_size intermediate_size kv_lora_rank moe_intermediate_size moe_renormalize
    num_attention_heads num_experts num_experts_per_token num_hidden_layers num_shared_experts
    qk_nope_head_dim qk_rope_head_dim rms_norm_eps routed_scaling_factor v_head_dim vocab_size
    """
)
REQUIRED_RELEASED: Final = REQUIRED | _words(
    """
    first_k_dense_replace linear_attn_config mla_use_nope moe_layer_freq
    moe_router_activation_func
    """
)
K3_ONLY: Final = _words(
    """
    activation_situ_beta activation_situ_linear_beta attn_res_block_size latent_moe_use_norm
    mla_use_output_gate routed_expert_hidden_size
    """
)
REQUIRED_K3: Final = REQUIRED_RELEASED | K3_ONLY | frozenset(("q_lora_rank",))
REQUIRED_SAVED: Final = REQUIRED | _words(
    "layer_types linear_conv_kernel_dim linear_head_dim linear_num_heads mlp_layer_types"
)
REQUIRED_LINEAR_ATTN: Final = LINEAR_ATTN_READ - {"gate_lower_bound", "use_full_rank_gate"}
