"""Tiny random models, one per way of keeping samples apart or failing to."""

from typing import Any

VOCAB = 400
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
}


def _make(name: str, config: Any) -> Any:
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return getattr(transformers, name)(config)


def llama(attention: str = "sdpa", dropout: float = 0.0) -> Any:
    from transformers import LlamaConfig

    return _make(
        "LlamaForCausalLM",
        LlamaConfig(**SMALL, attn_implementation=attention, attention_dropout=dropout),
    )


def qwen2(attention: str = "sdpa") -> Any:
    from transformers import Qwen2Config

    return _make("Qwen2ForCausalLM", Qwen2Config(**SMALL, attn_implementation=attention))


def mixtral() -> Any:
    from transformers import MixtralConfig

    return _make(
        "MixtralForCausalLM", MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)
    )


def gpt2() -> Any:
    from transformers import GPT2Config

    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=256,
        bos_token_id=None,
        eos_token_id=0,
    )
    return _make("GPT2LMHeadModel", config)


def opt() -> Any:
    """Takes positions, and builds its mask without looking at them."""
    from transformers import OPTConfig

    config = OPTConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=0,
    )
    return _make("OPTForCausalLM", config)


def mistral(sliding_window: int) -> Any:
    from transformers import MistralConfig

    return _make("MistralForCausalLM", MistralConfig(**SMALL, sliding_window=sliding_window))


def bloom() -> Any:
    """With ALiBi: its forward takes no positions, and sees the whole row."""
    from transformers import BloomConfig

    config = BloomConfig(
        vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=0
    )
    return _make("BloomForCausalLM", config)


def qwen2_5_vl() -> Any:
    """A vision-language model: the Trainer turns off the cache in its top config, and the text model reads its own."""
    from transformers import Qwen2_5_VLConfig

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 32,
    }
    config = Qwen2_5_VLConfig(text_config={**SMALL, "rope_parameters": rope}, vision_config=vision)
    return _make("Qwen2_5_VLForConditionalGeneration", config)


def gpt_oss(sliding_window: int = 4, attention: str = "eager") -> Any:
    """Makes its masks without looking at positions, one for layers with a sliding window and one for the others; has no sdpa."""
    from transformers import GptOssConfig

    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    config = GptOssConfig(
        **SMALL,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=sliding_window,
        rope_parameters=rope,
        attn_implementation=attention,
    )
    return _make("GptOssForCausalLM", config)


def qwen3_next() -> Any:
    """Layers of GatedDeltaNet and of attention."""
    from transformers import Qwen3NextConfig

    config = Qwen3NextConfig(
        **{**SMALL, "max_position_embeddings": 256},
        head_dim=8,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
    )
    return _make("Qwen3NextForCausalLM", config)


def recurrent() -> Any:
    """A model of one recurrent layer, whose state begins again where `seq_idx` changes, if it is given."""
    import torch
    from transformers import LlamaConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class DeltaNetLayer(torch.nn.Module):
        def forward(self, hidden: Any, seq_idx: Any) -> Any:
            state = torch.zeros_like(hidden[:, 0])
            states = []
            for place in range(hidden.shape[1]):
                if seq_idx is not None and place:
                    is_same = seq_idx[:, place] == seq_idx[:, place - 1]
                    state = state * is_same[:, None]
                state = 0.9 * state + hidden[:, place]
                states.append(state)
            return torch.stack(states, dim=1)

    class Recurrent(PreTrainedModel):
        config_class = LlamaConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.embedding = torch.nn.Embedding(config.vocab_size, config.hidden_size)
            self.layer = DeltaNetLayer()
            self.head = torch.nn.Linear(config.hidden_size, config.vocab_size)
            self.post_init()

        def forward(self, input_ids: Any, seq_idx: Any = None, labels: Any = None) -> Any:
            return CausalLMOutput(logits=self.head(self.layer(self.embedding(input_ids), seq_idx)))

    torch.manual_seed(0)
    return Recurrent(LlamaConfig(**SMALL))
