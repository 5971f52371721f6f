"""Tiny random models of several families, built from configs, saved as Hugging Face folders."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from layerwise.activations.extract import extract
from layerwise.config.models import FolderSource, Model
from layerwise.config.settings import ExtractSettings
from layerwise.metrics.registry import all_metrics
from layerwise.models.load import LoadedModel, load
from quickstart import nano

SENTENCE = (
    "the quick brown fox jumps over a lazy dog while seven old sailors watch from the pier and "
    "sing about storms they never saw nor feared in all their long and uneventful lives at sea"
)
WORDS = SENTENCE.split()
VOCABULARY = 300

COMMON = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 4, "intermediate_size": 48}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
ENCODER = {**COMMON, **HEADS, "pad_token_id": 0}
DECODER = {**COMMON, **HEADS, **TOKENS}
GROUPED = {**DECODER, "num_key_value_heads": 2}

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 8}
INDEXED = {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 16}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
OF_TWO_KINDS = {
    **LINEAR,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, **TOKENS}
XLM = {
    "n_words": VOCABULARY,
    "emb_dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "pad_token_id": 0,
    **{f"{name}_index": 0 for name in ("pad", "bos", "eos", "unk", "mask")},
}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    **TOKENS,
    **{f"{part}_layers": 3 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
}
REFORMER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "attention_head_size": 8,
    "axial_pos_embds": False,
    "max_position_embeddings": 300,
    "attn_layers": ["local", "local", "local"],
    "feed_forward_size": 48,
}

FAMILIES: dict[str, Any] = {
    # Pythia; SmolLM2 and Llama 3 (LLM2Vec too); BERT; Mamba and Mamba-2
    "gpt_neox": lambda: hf.GPTNeoXConfig(**DECODER),
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "bert": lambda: hf.BertConfig(**ENCODER),
    "mamba2": lambda: hf.Mamba2Config(
        **COMMON,
        **TOKENS,
        expand=2,
        head_dim=8,
        num_heads=8,
        state_size=8,
        n_groups=1,
        chunk_size=16,
    ),
    "mamba": lambda: hf.MambaConfig(**COMMON, **TOKENS, state_size=8),
    # GPT-2 and Cerebras-GPT; Qwen 2.5; RoBERTa; Gemma 1 to 3
    "gpt2": lambda: hf.GPT2Config(**GPT, n_inner=48),
    "qwen2": lambda: hf.Qwen2Config(**GROUPED),
    "roberta": lambda: hf.RobertaConfig(**ENCODER, max_position_embeddings=300),
    "gemma": lambda: hf.GemmaConfig(**GROUPED, head_dim=8),
    "gemma2": lambda: hf.Gemma2Config(**GROUPED, head_dim=8),
    "gemma3_text": lambda: hf.Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=8),
    # What else comes by: other parallel blocks, MLPs without a module, norms of other names
    "gpt_neox_sequential": lambda: hf.GPTNeoXConfig(**DECODER, use_parallel_residual=False),
    "gptj": lambda: hf.GPTJConfig(**GPT, rotary_dim=4),
    "falcon": lambda: hf.FalconConfig(**COMMON, num_attention_heads=4, **TOKENS),
    "phi": lambda: hf.PhiConfig(**DECODER),
    "opt": lambda: hf.OPTConfig(
        **COMMON, **TOKENS, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=32
    ),
    "modernbert": lambda: hf.ModernBertConfig(**DECODER, cls_token_id=0, sep_token_id=0),
    "distilbert": lambda: hf.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, n_layers=3, n_heads=4, hidden_dim=48, pad_token_id=0
    ),
    "t5": lambda: hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        num_layers=3,
        num_heads=4,
        d_ff=48,
        d_kv=8,
        pad_token_id=0,
        eos_token_id=0,
    ),
    "bloom": lambda: hf.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=3, n_head=4, **TOKENS
    ),
    "mpt": lambda: hf.MptConfig(
        vocab_size=VOCABULARY, d_model=32, n_layers=3, n_heads=4, max_seq_len=256, **TOKENS
    ),
    "olmo": lambda: hf.OlmoConfig(**GROUPED),
    "olmo2": lambda: hf.Olmo2Config(**GROUPED),
    "qwen3": lambda: hf.Qwen3Config(**GROUPED, head_dim=8),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(
        **GROUPED, **EXPERTS, head_dim=8, moe_intermediate_size=16
    ),
    "mixtral": lambda: hf.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "phi3": lambda: hf.Phi3Config(**GROUPED),
    "stablelm": lambda: hf.StableLmConfig(**GROUPED),
    "cohere": lambda: hf.CohereConfig(**GROUPED),
    "granite": lambda: hf.GraniteConfig(
        **GROUPED, residual_multiplier=0.5, embedding_multiplier=2.0
    ),
    "starcoder2": lambda: hf.Starcoder2Config(**GROUPED),
    "gpt_bigcode": lambda: hf.GPTBigCodeConfig(**GPT, n_inner=48),
    "xglm": lambda: hf.XGLMConfig(
        vocab_size=VOCABULARY, d_model=32, num_layers=3, attention_heads=4, ffn_dim=48, **TOKENS
    ),
    "gpt_oss": lambda: hf.GptOssConfig(
        **GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8
    ),
    # State-space models, recurrent ones, and hybrids of several kinds of blocks
    "falcon_mamba": lambda: hf.FalconMambaConfig(**COMMON, **TOKENS, state_size=8),
    "rwkv": lambda: hf.RwkvConfig(**COMMON, **TOKENS, attention_hidden_size=32, rescale_every=2),
    "recurrent_gemma": lambda: hf.RecurrentGemmaConfig(
        **DECODER, lru_width=32, attention_window_size=8, head_dim=8
    ),
    "lfm2": lambda: hf.Lfm2Config(
        **GROUPED,
        block_ff_dim=48,
        block_multiple_of=16,
        layer_types=["conv", "full_attention", "conv"],
    ),
    "jamba": lambda: hf.JambaConfig(
        **GROUPED,
        num_experts=4,
        num_experts_per_tok=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=8,
        use_mamba_kernels=False,
    ),
    "zamba": lambda: hf.ZambaConfig(
        **DECODER,
        num_key_value_heads=4,
        mamba_d_state=8,
        attention_hidden_size=64,
        attention_head_dim=16,
        n_mamba_heads=2,
        use_mamba_kernels=False,
        layers_block_type=["hybrid", "mamba", "hybrid"],
    ),
    "zamba2": lambda: hf.Zamba2Config(
        **DECODER,
        mamba_d_state=8,
        mamba_headdim=8,
        n_mamba_heads=8,
        attention_hidden_size=64,
        attention_head_dim=16,
        num_key_value_heads=4,
        chunk_size=16,
        layers_block_type=["mamba", "hybrid", "hybrid"],
        num_mem_blocks=1,
        use_mem_rope=False,
    ),
    "bamba": lambda: hf.BambaConfig(**GROUPED, **MAMBA, attn_layer_indices=[1]),
    "falcon_h1": lambda: hf.FalconH1Config(**GROUPED, mamba_d_ssm=64, **MAMBA, mamba_n_groups=1),
    "granitemoehybrid": lambda: hf.GraniteMoeHybridConfig(
        **GROUPED,
        layer_types=["mamba", "attention", "mamba"],
        **MAMBA,
        shared_intermediate_size=32,
    ),
    # Encoders of other kinds
    "deberta_v2": lambda: hf.DebertaV2Config(
        **ENCODER,
        relative_attention=True,
        position_biased_input=False,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
    ),
    "nomic_bert": lambda: hf.NomicBertConfig(**ENCODER),
    "electra": lambda: hf.ElectraConfig(**COMMON, **HEADS, embedding_size=16, pad_token_id=0),
    "mpnet": lambda: hf.MPNetConfig(**ENCODER, max_position_embeddings=300),
    "xlnet": lambda: hf.XLNetConfig(
        vocab_size=VOCABULARY, d_model=32, n_layer=3, n_head=4, d_inner=48, pad_token_id=0
    ),
    # Blocks spread over several lists, called several times, or with something after the first
    "xlm": lambda: hf.XLMConfig(**XLM),
    "flaubert": lambda: hf.FlaubertConfig(**XLM),
    "albert": lambda: hf.AlbertConfig(**ENCODER, embedding_size=16),
    "albert_groups": lambda: hf.AlbertConfig(**ENCODER, embedding_size=16, num_hidden_groups=3),
    "deberta_v2_conv": lambda: hf.DebertaV2Config(
        **ENCODER, relative_attention=True, conv_kernel_size=3, conv_act="gelu"
    ),
    # States that depend on a longer prompt in the batch
    "fnet": lambda: hf.FNetConfig(
        **COMMON, intermediate_size=48, pad_token_id=0, max_position_embeddings=300
    ),
    "mobilebert": lambda: hf.MobileBertConfig(
        **ENCODER, embedding_size=16, intra_bottleneck_size=16, num_feedforward_networks=2
    ),
    "nystromformer": lambda: hf.NystromformerConfig(**ENCODER),
    "yoso": lambda: hf.YosoConfig(**ENCODER),
    "convbert": lambda: hf.ConvBertConfig(**ENCODER, embedding_size=16),
    # States that are padded to a multiple of the window
    "longformer": lambda: hf.LongformerConfig(
        **ENCODER, attention_window=8, max_position_embeddings=300
    ),
    "led": lambda: hf.LEDConfig(**BART, attention_window=8),
    # Other encoders and decoders
    "big_bird": lambda: hf.BigBirdConfig(**ENCODER),
    "roformer": lambda: hf.RoFormerConfig(**ENCODER, embedding_size=16),
    "rembert": lambda: hf.RemBertConfig(**ENCODER, input_embedding_size=16),
    "ibert": lambda: hf.IBertConfig(**ENCODER),
    "esm": lambda: hf.EsmConfig(**ENCODER, mask_token_id=4, position_embedding_type="rotary"),
    "luke": lambda: hf.LukeConfig(**ENCODER, entity_vocab_size=10, entity_emb_size=8),
    "xlm_roberta_xl": lambda: hf.XLMRobertaXLConfig(**ENCODER, max_position_embeddings=300),
    "megatron_bert": lambda: hf.MegatronBertConfig(**ENCODER),
    "bart": lambda: hf.BartConfig(**BART),
    "pegasus": lambda: hf.PegasusConfig(**BART),
    "m2m_100": lambda: hf.M2M100Config(**BART),
    "blenderbot": lambda: hf.BlenderbotConfig(**BART),
    "openai_gpt": lambda: hf.OpenAIGPTConfig(**GPT),
    "codegen": lambda: hf.CodeGenConfig(**GPT, rotary_dim=4),
    "gpt_neo": lambda: hf.GPTNeoConfig(
        **COMMON, **TOKENS, num_heads=4, attention_types=[[["global", "local", "global"], 1]]
    ),
    "biogpt": lambda: hf.BioGptConfig(**DECODER),
    "smollm3": lambda: hf.SmolLM3Config(**GROUPED),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **GROUPED,
        **EXPERTS,
        **OF_TWO_KINDS,
        head_dim=8,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "qwen3_5": lambda: hf.Qwen3_5TextConfig(**GROUPED, **OF_TWO_KINDS, head_dim=8),
    "olmo_hybrid": lambda: hf.OlmoHybridConfig(**GROUPED, **OF_TWO_KINDS),
    "apertus": lambda: hf.ApertusConfig(**GROUPED),
    "olmo3": lambda: hf.Olmo3Config(**GROUPED, sliding_window=8),
    "eurobert": lambda: hf.EuroBertConfig(**GROUPED),
    "modernbert_decoder": lambda: hf.ModernBertDecoderConfig(
        **DECODER, cls_token_id=0, sep_token_id=0
    ),
    "glm4_moe": lambda: hf.Glm4MoeConfig(**GROUPED, **ROUTED, head_dim=8, n_group=1, topk_group=1),
    # Several residual streams, blocks that run in turns, a projection behind the final norm
    "deepseek_v4": lambda: hf.DeepseekV4Config(
        **COMMON,
        **TOKENS,
        **ROUTED,
        **INDEXED,
        num_attention_heads=4,
        head_dim=16,
        q_lora_rank=16,
        o_groups=2,
        o_lora_rank=8,
        sliding_window=64,
    ),
    "glm5_next": lambda: hf.Glm5NextTextConfig(
        **DECODER,
        **ROUTED,
        **LATENT,
        **INDEXED,
        num_key_value_heads=4,
        linear_head_dim=8,
        linear_num_heads=4,
        index_kpool=2,
        layer_types=["linear_attention", "indexed_attention", "linear_attention"],
    ),
    "hy_v4": lambda: hf.HYV4Config(
        **DECODER, **ROUTED, **LATENT, **INDEXED, num_key_value_heads=4, qk_rope_head_dim=8
    ),
    "qwen4_exp": lambda: hf.Qwen4ExpTextConfig(
        **COMMON,
        **TOKENS,
        **EXPERTS,
        **LINEAR,
        num_attention_heads=4,
        head_dim=8,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        hc_lowrank=8,
        indexer_n_heads=2,
        indexer_kv_heads=1,
        indexer_head_dim=8,
        indexer_budget=16,
        indexer_compress_ratio=2,
        layer_types=["linear_attention", "indexed_attention", "linear_attention"],
    ),
    "gemma3n": lambda: hf.Gemma3nTextConfig(
        **GROUPED,
        head_dim=8,
        sliding_window=8,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
        laurel_rank=8,
        activation_sparsity_pattern=[0.0, 0.0, 0.0],
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "hrm_text": lambda: hf.HrmTextConfig(
        **{**DECODER, "num_hidden_layers": 1}, head_dim=8, H_cycles=1, L_cycles=2
    ),
    "embedding_gemma2": lambda: hf.EmbeddingGemma2TextConfig(
        **GROUPED,
        head_dim=8,
        global_head_dim=8,
        num_global_key_value_heads=1,
        hidden_size_per_layer_input=8,
        embedding_dim=48,
        sliding_window=8,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
}
# Layers of these cannot be told.
OTHER: dict[str, Any] = {
    "mra": lambda: hf.MraConfig(**ENCODER),  # without its kernel no token sees another
    "canine": lambda: hf.CanineConfig(**ENCODER),  # fewer states inside than tokens
    "reformer": lambda: hf.ReformerConfig(**REFORMER),  # two streams, of which one is read
}
# One family of each kind, for `make test`; the others are part of `make test-all`.
KINDS = (
    *("llama", "gpt_neox", "bert", "mamba2", "vit", "vit_mae", "xlm", "albert", "fnet"),
    *("deepseek_v4", "gemma3n", "hrm_text", "embedding_gemma2"),
)


def families(names: Iterable[str], fast: Iterable[str] = KINDS) -> list[Any]:
    """Parameters of a test by family: those that are not in `fast` are marked slow."""
    slow = pytest.mark.slow
    return [name if name in fast else pytest.param(name, marks=slow) for name in names]


def texts(n: int, seed: int = 0, shortest: int = 4, longest: int = 30) -> list[str]:
    """Sentences of random words and lengths."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(n):
        size = int(torch.randint(shortest, longest + 1, (1,), generator=generator))
        picks = torch.randint(len(WORDS), (size,), generator=generator)
        made.append(" ".join(WORDS[int(i)] for i in picks))
    return made


def save(
    family: Any, folder: Path, seed: int = 0, kind: Any = hf.AutoModel, vectors: bool = True
) -> Path:
    """Save a tiny random model of a family or a config with a tokenizer; returns its folder."""
    torch.manual_seed(seed)
    config = (FAMILIES | OTHER)[family]() if isinstance(family, str) else family
    model = kind.from_config(config)
    for parameter in model.parameters():
        # Freshly built models have zero biases and tiny weights; real ones don't.
        torch.nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else None
    if vectors:
        shake_vectors(model)
    model.save_pretrained(folder)
    nano.train_tokenizer(WORDS, VOCABULARY).save_pretrained(folder)
    return folder


def shake_vectors(model: torch.nn.Module) -> None:
    """Add noise to norms' weights, biases and scales, which fresh models have at 1 or 0."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)


def entry(folder: Path | str, **settings: Any) -> Model:
    """The config's entry of a model in a folder."""
    return Model(source=FolderSource(folder=str(folder)), **settings)


def loaded(family: str, folder: Path) -> LoadedModel:
    """A tiny random model of a family, saved in a folder and loaded from there."""
    return load(family, entry(save(family, folder)), "main", device="cpu")


def facts(model: Any) -> dict[str, Any]:
    """All that may be changed in a model in memory: values to compare before and after a use."""
    found: dict[str, Any] = {"config": model.config.to_json_string()}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, dict):
                found[f"{name}.{key}"] = {k: id(v) for k, v in value.items()}
            else:
                simple = isinstance(value, bool | int | float | str | None)
                found[f"{name}.{key}"] = value if simple else id(value)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        values = tensor.detach().double().numpy().tobytes()
        found[f"{name} as bytes"] = values, tensor.dtype, tensor.requires_grad
    return found


ATTENTION, PREFIXES = ("first_token_attention",), ("prefix_spectrum",)
DIMENSIONS = ("dimension", "dimension_share")


def extracted(
    model: LoadedModel,
    target: Path,
    *views: Sequence[Any],
    perturb: Any = None,
    base: Path | None = None,
    **settings: Any,
) -> Path:
    """Extract views of prompts, which are called p0, p1, …, to a file; returns its path."""
    all_metrics()  # their files declare further arrays
    extract(
        model,
        corpus="c",
        prompts=[f"p{i}" for i in range(len(views[0]))],
        views=views,
        settings=ExtractSettings(**settings),
        target=target,
        attributes={},
        perturb=perturb,
        base=base,
    )
    return target
