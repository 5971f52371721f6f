"""The parts of each architecture. All knowledge of architectures is here.

A decoder, an encoder, a state-space model and a vision transformer have one thing in common: a
list of equal blocks that add to a residual stream. Layer 0 is what the first block receives,
layer l the output of block l. Hooks on the blocks therefore mean the same for every family.
``hidden_states`` of transformers do not: the last entry is normed in most decoders.

A new architecture usually needs nothing: the general rule finds its blocks. If the rule fails,
add one line to `BLOCKS` (and one to `FINAL_NORM` if the model ends in a norm of another name, one
to `PARTS` if the modules inside its blocks have other names).

Sub-layers, with names that mean the same in every family (the paper's Figure 15):

================= ===============================================================================
input_norm        the block's input after its first norm; post-norm models (BERT) have none
mixer             what attention, or the state-space mixer, adds to the stream
mixer_residual    the stream after the mixer: in pre-norm blocks the block's input + mixer, also in
                  parallel blocks (Pythia), where no module holds that sum; in post-norm blocks the
                  normed sum
mlp_norm          input of the MLP: the stream after the MLP's norm (in parallel blocks, as in
                  Pythia, the block's input after that norm); post-norm models have none
mlp               what the MLP adds to the stream; Mamba has none
block             the stream after the block: the layer itself
================= ===============================================================================

In every pre-norm block, input + mixer + mlp = block. We check this on the first batch and refuse
an architecture whose modules have known names but are connected differently.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import nn

from layerwise.errors import LayerwiseError

BLOCK = "block"
SUBLAYERS = ("input_norm", "mixer", "mixer_residual", "mlp_norm", "mlp", BLOCK)
OUTPUT = "output"
READOUTS = ("residual", "final_norm", OUTPUT)

# config.model_type -> path of the list of blocks, if the general rule does not find it.
BLOCKS: dict[str, str] = {}

# These run a single block L times, so no module corresponds to a layer.
SHARED_BLOCKS = ("albert",)

# Their positions start after the id of the padding, which leaves two fewer for tokens.
POSITIONS_FROM_PADS = ("camembert", "mpnet", "roberta", "xlm-roberta")

# Config keys of the longest input in tokens (transformers maps further ones to the first).
LONGEST = ("max_position_embeddings", "max_seq_len")

# Names of the final norm, in the module that holds the blocks or the one above.
FINAL_NORM = (
    "norm",
    "norm_f",
    "ln_f",
    "final_norm",
    "final_layer_norm",
    "final_layernorm",
    "layernorm",
    "layer_norm",
    "post_layernorm",
    "ln_out",
)
# config.model_type -> name of its final norm, if that name has another meaning elsewhere.
FINAL_NORM_OF = {
    "aimv2_vision_model": "rms_norm",
    "lfm2": "embedding_norm",
    "lfm2_moe": "embedding_norm",
}


@dataclass(frozen=True)
class Parts:
    """Paths in a block of the modules whose outputs are its sub-layers.

    `residual` is the module that gives the normed sum, in post-norm blocks only. `mlp_norm` is the
    norm before the MLP, if there is one.
    """

    input_norm: str | None
    mixer: str
    mlp: str | None
    residual: str | None = None
    mlp_norm: str | None = None

    def named(self) -> dict[str, str]:
        """Paths by name of the sub-layer."""
        found = {
            "input_norm": self.input_norm,
            "mixer": self.mixer,
            "mixer_residual": self.residual,
            "mlp_norm": self.mlp_norm,
            "mlp": self.mlp,
        }
        return {name: path for name, path in found.items() if path is not None}


# The first entry whose modules a block all has applies, so longer entries come first.
PARTS = (
    Parts(
        "input_layernorm",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
        mlp_norm="pre_feedforward_layernorm",
    ),  # Gemma 2
    Parts(None, "post_attention_layernorm", "post_feedforward_layernorm"),  # OLMo 2
    Parts("norm1", "layer_scale1", "layer_scale2", mlp_norm="norm2"),  # DINOv2
    Parts(
        "input_layernorm", "self_attn", "mlp", mlp_norm="post_attention_layernorm"
    ),  # Llama, Qwen, Mistral, Gemma, Phi
    Parts("input_layernorm", "attention", "mlp", mlp_norm="post_attention_layernorm"),  # GPT-NeoX
    Parts(
        "input_layernorm",
        "self_attention.dense",
        "mlp.dense_4h_to_h",
        mlp_norm="post_attention_layernorm",
    ),  # Falcon, BLOOM
    Parts("ln_attn", "self_attention", "mlp", mlp_norm="ln_mlp"),  # Falcon 40B
    Parts("ln_1", "attn", "mlp", mlp_norm="ln_2"),  # GPT-2, GPT-J
    Parts("attn_norm", "attn", "mlp", mlp_norm="mlp_norm"),  # ModernBERT
    Parts("self_attn_layer_norm", "self_attn", "fc2", mlp_norm="final_layer_norm"),  # OPT
    Parts("layernorm_before", "attention", "mlp", mlp_norm="layernorm_after"),  # ViT
    Parts("layer_norm1", "self_attn", "mlp", mlp_norm="layer_norm2"),  # CLIP, SigLIP
    Parts("rms_norm1", "attention", "ffn", mlp_norm="rms_norm2"),  # AIMv2
    Parts(
        "layer.0.layer_norm",
        "layer.0.SelfAttention",
        "layer.1.DenseReluDense",
        mlp_norm="layer.1.layer_norm",
    ),  # T5
    Parts("norm_1", "attn", "ffn.down_proj", mlp_norm="norm_2"),  # MPT
    Parts(
        "input_layernorm", "self_attn", "feed_forward", mlp_norm="pre_ff_layernorm"
    ),  # attention in Jamba and Bamba
    Parts(
        "input_layernorm", "mamba", "feed_forward", mlp_norm="pre_ff_layernorm"
    ),  # Mamba in Jamba and Bamba
    Parts("operator_norm", "self_attn", "feed_forward", mlp_norm="ffn_norm"),  # attention in LFM2
    Parts("operator_norm", "conv", "feed_forward", mlp_norm="ffn_norm"),  # convolution in LFM2
    Parts(
        "temporal_pre_norm", "temporal_block", "mlp_block", mlp_norm="channel_pre_norm"
    ),  # RecurrentGemma
    Parts("norm", "mixer", None),  # Mamba, Mamba-2, Falcon-Mamba
    Parts(None, "attention.attn", "output.dense", "attention"),  # MPNet
    Parts(None, "attention.output.dense", "output.dense", "attention"),  # BERT, RoBERTa
    Parts(None, "attention", "ffn", "sa_layer_norm"),  # DistilBERT
)


@dataclass(frozen=True)
class Anatomy:
    """The parts of a model that get hooks.

    Attributes
    ----------
    kind : transformers' ``model_type``
    path : path of the list of blocks in the model
    blocks : the blocks, in the order in which they run
    final_norm : the norm after the last block; None if the blocks end in one
    hidden : width of the residual stream
    time_first : True if states are (length, batch, width) inside the model, as in XLNet
    has_output : True if the model's output is as wide as the stream
    prefix : number of tokens in front of an image's patches (class, registers, start); None for
        text models
    has_class : True if the first of them is a class token
    added_up : layers whose sub-layers were checked to add up to the block
    """

    kind: str
    path: str
    blocks: nn.ModuleList
    final_norm: nn.Module | None
    hidden: int
    time_first: bool = False
    has_output: bool = True
    prefix: int | None = None
    has_class: bool = False
    added_up: set[int] = field(default_factory=set, compare=False)

    @property
    def n_layers(self) -> int:
        """L + 1: the blocks and the embedding output."""
        return len(self.blocks) + 1

    @property
    def readouts(self) -> tuple[str, ...]:
        """The readouts that this model has."""
        there = {"final_norm": self.final_norm is not None, OUTPUT: self.has_output}
        return tuple(name for name in READOUTS if there.get(name, True))

    @cached_property
    def parts(self) -> tuple[Parts, ...]:
        """Find the sub-layers of each block; returns one entry per block.

        Raises
        ------
        LayerwiseError
            If no entry of `PARTS` fits a block; the message names the line to add.
        """
        found = []
        for block in self.blocks:
            paths = {name for name, _ in block.named_modules()}
            # One norm may serve both the mixer and the MLP.
            known = (
                own
                for parts in PARTS
                for own in (parts, replace(parts, mlp_norm=None))
                if paths >= set(own.named().values())
            )
            own = next(known, None)
            if own is None:
                inside = sorted(name for name, _ in block.named_children())
                raise LayerwiseError(
                    f"The sublayers of the architecture {self.kind!r} are not known (a block "
                    f"holds {inside}); add a line Parts('<first norm>', '<attention>', '<MLP>') "
                    "to PARTS in lib/layerwise/models/architectures.py, or ask for no "
                    "extract.sublayers."
                )
            found.append(own)
        return tuple(found)

    @property
    def sublayers(self) -> tuple[str, ...]:
        """The sub-layers that every block of this model has."""
        everywhere = set.intersection(*(set(parts.named()) for parts in self.parts))
        everywhere |= {"mixer_residual", BLOCK}
        return tuple(name for name in SUBLAYERS if name in everywhere)


def settle(model: nn.Module) -> None:
    """Switch off scaling that gives a model's layers different units.

    RWKV halves its stream and the weights after every few blocks to keep float16 from
    overflowing.
    """
    config: Any = model.config
    if hasattr(config, "rescale_every"):
        config.rescale_every = 0


def dissect(model: nn.Module) -> Anatomy:
    """Find the blocks and the final norm of a Hugging Face model.

    General rule: the blocks are the topmost ``ModuleList`` of ``config.num_hidden_layers``
    modules. In hybrids of attention and state-space mixers they have several classes.

    Raises
    ------
    LayerwiseError
        If the rule finds nothing; the message names the line to add.
    """
    config: Any = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    kind = str(config.model_type)
    if kind in SHARED_BLOCKS:
        raise LayerwiseError(
            f"{type(model).__name__} runs a single block for every layer, so its layers have no "
            "modules of their own; this architecture is not supported."
        )
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    if kind in BLOCKS:
        path = BLOCKS[kind]
    else:
        depth = getattr(config, "num_hidden_layers", None)
        fitting = [name for name, modules in lists.items() if len(modules) == depth]
        if not fitting:
            raise LayerwiseError(
                f"The blocks of the architecture {kind!r} ({type(model).__name__}) were not "
                f"found: no list of {depth} modules among {sorted(lists)}; add a "
                f"line {kind!r}: '<path of its blocks>' to BLOCKS in "
                "lib/layerwise/models/architectures.py."
            )
        path = min(fitting, key=lambda name: (name.count("."), name))
    blocks = lists.get(path)
    if blocks is None:
        raise LayerwiseError(
            f"BLOCKS in lib/layerwise/models/architectures.py says {path!r} for {kind!r}, but "
            f"{type(model).__name__} has no such list; it has {sorted(lists)}."
        )
    return Anatomy(kind, path, blocks, _final_norm(model, path, kind), int(config.hidden_size))


def _final_norm(model: nn.Module, path: str, kind: str) -> nn.Module | None:
    """The final norm, searched next to the blocks and then upwards; None for post-norm models."""
    names = (FINAL_NORM_OF[kind],) if kind in FINAL_NORM_OF else FINAL_NORM
    parts = path.split(".")[:-1]
    while True:
        holder = model.get_submodule(".".join(parts))
        for name in names:
            module = getattr(holder, name, None)
            # BEiT with mean pooling has an Identity in the norm's place.
            if isinstance(module, nn.Module) and not isinstance(module, nn.Identity):
                return module
        if not parts:
            return None
        parts.pop()
