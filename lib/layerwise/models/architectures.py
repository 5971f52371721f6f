"""Where the parts of an architecture are. All knowledge of architectures lives here.

A decoder, an encoder, a state-space model and a vision transformer have one thing in common: a
list of equal blocks that add to a residual stream. Layer 0 is what the first block receives,
layer l what block l hands on. Hooks on the blocks therefore mean the same for every family,
where transformers' ``hidden_states`` do not (its last entry is normed in most decoders).

A new architecture usually needs nothing: the general rule finds its blocks. If the rule fails,
add one line to `BLOCKS` (and one to `FINAL_NORM` if the model ends in a norm of another name).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from layerwise.errors import LayerwiseError

# config.model_type -> path of the block list, only where the general rule would not find it.
BLOCKS: dict[str, str] = {
    "t5": "encoder.block",
}

# Names that a model's last norm goes by, in the module that holds the blocks or the one above.
FINAL_NORM = (
    "norm",
    "norm_f",
    "ln_f",
    "final_layer_norm",
    "final_layernorm",
    "layernorm",
    "layer_norm",
    "post_layernorm",
)


@dataclass(frozen=True)
class Anatomy:
    """The parts of a model that hooks are put on."""

    blocks: nn.ModuleList
    final_norm: nn.Module | None
    hidden: int

    @property
    def n_layers(self) -> int:
        """L + 1: the blocks and the embedding output."""
        return len(self.blocks) + 1


def dissect(model: nn.Module) -> Anatomy:
    """Find the blocks and the last norm of a Hugging Face model.

    General rule: the blocks are the ``ModuleList`` of ``config.num_hidden_layers`` modules of one
    class that lies highest in the tree.

    Raises
    ------
    LayerwiseError
        If the rule finds nothing; the message says which line to add.
    """
    config: Any = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    kind = str(config.model_type)
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    if kind in BLOCKS:
        path = BLOCKS[kind]
    else:
        depth = getattr(config, "num_hidden_layers", None)
        fitting = [
            name
            for name, modules in lists.items()
            if len(modules) == depth and len({type(m) for m in modules}) == 1
        ]
        if not fitting:
            raise LayerwiseError(
                f"The blocks of the architecture {kind!r} ({type(model).__name__}) were not "
                f"found: no list of {depth} equal modules among {sorted(lists)}; add a "
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
    return Anatomy(blocks, _final_norm(model, path), int(config.hidden_size))


def _final_norm(model: nn.Module, path: str) -> nn.Module | None:
    """The last norm, looked for beside the blocks and then upwards; None for post-norm models."""
    parts = path.split(".")[:-1]
    while True:
        holder = model.get_submodule(".".join(parts))
        for name in FINAL_NORM:
            module = getattr(holder, name, None)
            if isinstance(module, nn.Module):
                return module
        if not parts:
            return None
        parts.pop()
