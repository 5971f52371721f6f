"""The parts of each architecture. All knowledge of architectures is here.

A decoder, an encoder, a state-space model and a vision transformer have one thing in common: a
list of equal blocks that add to a residual stream. Layer l is what block l + 1 receives, the last
layer what the last block gives. Hooks on the blocks therefore mean the same for every family.
``hidden_states`` of transformers do not: the last entry is normed in most decoders.

A new architecture usually needs nothing: its blocks are found by the number of their calls, its
final norm by what it does (`layerwise.models.probe`). Sub-layers of a new kind of block need a
entry in ``sublayers.yaml``.

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

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple, cast

import yaml
from torch import Tensor, nn

from layerwise.errors import LayerwiseError
from layerwise.vocabulary import BLOCK, FINAL_NORM, OUTPUT, READOUTS, SUBLAYERS

# Config keys of the longest input in tokens (transformers maps further ones to the first).
LONGEST = ("max_position_embeddings", "max_seq_len", "max_encoder_position_embeddings")

# Config keys of the number of tokens that sparse attention selects. Of longer texts, equal scores
# are told apart by the length of the batch.
SELECTED = ("index_topk", "indexer_budget")

# Config keys of lengths in tokens at which the computation changes.
THRESHOLDS = (
    "sliding_window",
    "attention_window",
    "attention_window_size",
    "local_attention",
    "window_size",
    "attention_chunk_size",
    "expert_capacity",
)


def unsupported(problem: str) -> LayerwiseError:
    """The error for a model that cannot be read."""
    return LayerwiseError(f"{problem}; such models are not supported.", code="unsupported")


class Parts(NamedTuple):
    """Paths in a block of the modules whose outputs are its sub-layers, in the order of the pass.

    `mixer_residual` is the module that gives the normed sum, in post-norm blocks only.
    """

    input_norm: str | None
    mixer: str
    mlp_norm: str | None
    mlp: str | None
    mixer_residual: str | None = None

    def named(self) -> dict[str, str]:
        """Paths by name of the sub-layer."""
        return {name: path for name, path in self._asdict().items() if path is not None}


@cache
def _known_parts() -> list[Parts]:
    """The entries of ``sublayers.yaml``; one norm may serve both the mixer and the MLP."""
    text = files(__package__).joinpath("sublayers.yaml").read_text(encoding="utf-8")
    entries = [Parts(*map(row.get, Parts._fields)) for row in yaml.safe_load(text)]
    return list(chain(*((parts, parts._replace(mlp_norm=None)) for parts in entries)))


class Layout(NamedTuple):
    """Axes of the states between blocks.

    Attributes
    ----------
    order : tuple of int
        The axes that are batch, time, stream (if it has an axis) and width.
    streams : int
        Number of residual streams: several in models with hyper-connections or AltUp.
    is_folded : bool
        True if the streams stand one after another along the width, without an axis.
    """

    order: tuple[int, ...] = (0, 1, 2)
    streams: int = 1
    is_folded: bool = False

    def states(self, tensor: Tensor, n_tokens: int | None = None) -> Tensor:
        """States, shape (B, T, D), or (B, T, streams, D); Longformer pads a batch to a multiple
        of its window, so there may be more than `n_tokens`."""
        tensor = tensor.permute(self.order)
        if self.is_folded:
            tensor = tensor.reshape(*tensor.shape[:-1], self.streams, -1)
        return tensor[:, :n_tokens]

    def tensor(self, states: Tensor) -> Tensor:
        """The tensor between blocks that has these states."""
        states = states.flatten(-2) if self.is_folded else states
        return states.permute([self.order.index(axis) for axis in range(len(self.order))])


@dataclass(frozen=True)
class Anatomy:
    """The parts of a model that get hooks.

    Attributes
    ----------
    kind : transformers' ``model_type``
    path : path of the list of blocks in the model
    blocks : the blocks in the order of their calls; ALBERT calls one block several times
    names : paths of these blocks
    last : the module whose output is the last layer: the last block, except where a block is
        spread over several lists, as in XLM
    hidden : width of the residual stream
    final_norm : what stands between the last block and the model's output, such as a norm, a norm
        and a projection, or a mixture of streams; None if there is nothing
    layout : axes of the states inside the model
    output : width of the model's output; 0 if it has none
    equal_lengths : True if a prompt's states change with a longer prompt in its batch, so that a
        batch must have prompts of one length
    prefix : number of tokens in front of an image's patches (class, registers, start); None for
        text models
    has_class : True if the first of them is a class token
    added_up : layers whose sub-layers were checked to add up to the block
    thresholds : lengths at which the computation changes, which no batch crosses
    proved : the longest prompt that may share a batch with a longer or shorter one
    """

    kind: str
    path: str
    blocks: tuple[nn.Module, ...]
    last: nn.Module
    hidden: int
    names: tuple[str, ...] = ()
    final_norm: nn.Module | None = None
    layout: Layout = Layout()  # noqa: RUF009
    output: int = 0
    equal_lengths: bool = False
    prefix: int | None = None
    has_class: bool = False
    added_up: set[int] = field(default_factory=set, compare=False)
    thresholds: tuple[int, ...] = ()
    proved: float = math.inf

    def group(self, size: int) -> int:
        """Prompts of different groups share no batch."""
        if self.equal_lengths or size > self.proved:
            return size
        return -bisect_left(self.thresholds, size)

    @property
    def n_layers(self) -> int:
        """L + 1: the blocks and the embedding output."""
        return len(self.blocks) + 1

    @property
    def readouts(self) -> tuple[str, ...]:
        """The readouts that are as wide as the stream."""
        is_as_wide = self.output == self.hidden
        there = {FINAL_NORM: self.final_norm is not None and is_as_wide, OUTPUT: is_as_wide}
        return tuple(name for name in READOUTS if there.get(name, True))

    def read_out(self, states: Tensor) -> Tensor:
        """Apply `final_norm` to states of shape (B, T, D), or (B, T, streams, D)."""
        assert self.final_norm is not None
        tensor = self.layout.tensor(states) if self.layout.streams > 1 else states
        return cast("Tensor", self.final_norm(tensor))

    @property
    def passes(self) -> list[int]:
        """For each block, the number of its pass: 2 where it runs for the second time."""
        return [self.names[: n + 1].count(name) for n, name in enumerate(self.names)]

    @cached_property
    def parts(self) -> tuple[Parts, ...]:
        """Find the sub-layers of each block; returns one entry per block.

        Raises
        ------
        LayerwiseError
            If no entry of ``sublayers.yaml`` fits a block.
        """
        if self.layout.streams > 1:
            raise unsupported(
                f"The architecture {self.kind!r} has {self.layout.streams} residual streams, to "
                "which no sublayer adds alone"
            )
        parts_of_blocks = []
        for block in self.blocks:
            paths = {name for name, _ in block.named_modules()}
            fitting = (p for p in _known_parts() if paths >= set(p.named().values()))
            parts = next(fitting, None)
            if parts is None:
                inside = sorted(name for name, _ in block.named_children())
                raise LayerwiseError(
                    f"The sublayers of the architecture {self.kind!r} are not known (a block "
                    f"holds {inside}); add an entry with their paths to "
                    "lib/layerwise/models/sublayers.yaml, or ask for no extract.sublayers.",
                    code="unsupported",
                )
            parts_of_blocks.append(parts)
        return tuple(parts_of_blocks)

    @property
    def sublayers(self) -> tuple[str, ...]:
        """The sub-layers that every block of this model has."""
        everywhere = set.intersection(*(set(parts.named()) for parts in self.parts))
        everywhere |= {"mixer_residual", BLOCK}
        return tuple(name for name in SUBLAYERS if name in everywhere)


def settle(model: Any) -> Callable[[], None]:
    """Switch off scaling that gives a model's layers different units; returns what undoes it.

    RWKV halves its stream and some weights after every few blocks to keep float16 from
    overflowing: the weights in its first pass in evaluation mode.
    """
    config = model.config
    every = getattr(config, "rescale_every", 0)
    halved = bool(every) and model.layers_are_rescaled
    if halved:
        model.training = True
        model._rescale_layers()  # multiplies by powers of two, which is exact
        model.training = False
    if every:
        config.rescale_every = 0

    def undo() -> None:
        if halved:
            config.rescale_every = every
            model.training = model.layers_are_rescaled = False
            model._rescale_layers()

    return undo


def attend_both_ways(model: nn.Module) -> None:
    """Let a decoder's tokens see later ones too, where its attention has a switch for that.

    The mask functions of transformers read ``config.is_causal``, its attention functions each
    module's ``is_causal``.
    """
    modules: list[Any] = [m for m in model.modules() if hasattr(m, "is_causal")]
    for owner in (model.config, *modules):
        owner.is_causal = False


def thresholds(config: Any, longest: int) -> tuple[int, ...]:
    """Lengths below `longest` tokens at which a config changes the computation: windows, blocks,
    chunks, capacities of experts, and lengths of training of rotary embeddings."""
    lengths = {_dense_up_to(config)}
    sections = [config.to_dict()]
    for section in sections:  # grows
        sections += [value for value in section.values() if isinstance(value, dict)]
        by_batch = section.get("rope_type") in ("longrope", "dynamic")
        for key in (*THRESHOLDS, *(["original_max_position_embeddings"] if by_batch else [])):
            value = section.get(key)
            lengths |= {
                n for n in (value if isinstance(value, list) else [value]) if type(n) is int
            }
    return tuple(sorted(n for n in lengths if 0 < n < longest))


def selects_from(config: Any) -> float:
    """Tokens of the longest text that sparse attention reads whole; infinite without it."""
    numbers = [getattr(config.get_text_config(), key, None) for key in SELECTED]
    return min((n for n in numbers if isinstance(n, int)), default=math.inf)


def _dense_up_to(config: Any) -> int:
    """Tokens of the longest text that BigBird's sparse attention is too coarse for; else 0."""
    if getattr(config, "attention_type", None) != "block_sparse":
        return 0
    return int((5 + 2 * config.num_random_blocks) * config.block_size)


def start_afresh(model: Any, n_tokens: int) -> None:
    """Undo what an earlier pass has switched for all later ones: BigBird to dense attention,
    frequencies of rotary embeddings to those of the longest text so far."""
    if n_tokens > _dense_up_to(model.config) > 0:
        model.set_attention_type(model.config.attention_type)
    for module in model.modules():
        if "dynamic" in str(getattr(module, "rope_type", "")):
            names = (*vars(module), *dict(module.named_buffers(recurse=False)))
            for name in [name for name in names if name.endswith("original_inv_freq")]:
                prefix = name.removesuffix("original_inv_freq")
                frequencies = getattr(module, name).to(getattr(module, f"{prefix}inv_freq").device)
                module.register_buffer(f"{prefix}inv_freq", frequencies, persistent=False)
                setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


class Stack(NamedTuple):
    """The blocks that a model's configuration describes.

    Attributes
    ----------
    kind : transformers' ``model_type``
    depth : number of layers without the embedding output
    hidden : width of the residual stream
    lists : the lists of modules in the model by their paths, outer ones first
    """

    kind: str
    depth: int
    hidden: int
    lists: dict[str, nn.ModuleList]

    @property
    def path(self) -> str | None:
        """The path of the blocks where there is one for each layer: of the outermost list of
        `depth` modules; None if there is none."""
        return next((p for p, modules in self.lists.items() if len(modules) == self.depth), None)


def dissect(model: nn.Module) -> Stack:
    """Find the lists of modules that may be the blocks of a Hugging Face model.

    Raises
    ------
    LayerwiseError
        If the configuration names no number of layers or no single width.
    """
    config: Any = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    depth, hidden = (getattr(config, k, None) for k in ("num_hidden_layers", "hidden_size"))
    if not isinstance(depth, int) or not isinstance(hidden, int):
        raise unsupported(
            f"{type(model).__name__} (architecture {config.model_type!r}) is no stack of blocks "
            "of one width (its config.json has no single num_hidden_layers and hidden_size)"
        )
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    outer_first = sorted(lists, key=lambda name: (name.count("."), name))
    kind = str(config.model_type)
    return Stack(kind, depth, hidden, {name: lists[name] for name in outer_first})
