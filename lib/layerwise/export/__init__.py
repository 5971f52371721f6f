"""A model cut at a layer, as a folder that sentence-transformers and transformers load.

Cut a model at a layer and save it as a sentence-transformers folder.

The blocks after the layer are left out. `AutoModel` returns the stream after the last block of the
cut model, through the final norm if there is one: the readout ``final_norm``. transformers returns
the stream itself, ``residual``, only as the input of a block. So we keep one more block, and
`WeightedLayerPooling` of sentence-transformers takes its input.

sentence-transformers cannot drop tokens: we save a module for that in the folder, which loads with
``trust_remote_code=True``.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from layerwise.activations.embedding import embed
from layerwise.activations.representation import Representation
from layerwise.errors import LayerwiseError, check_name
from layerwise.io.files import disk_fault, memory_fault, replacing_folder
from layerwise.models.architectures import dissect
from layerwise.models.load import LoadedModel
from layerwise.project import require
from layerwise.tasks.task import normalized
from layerwise.vocabulary import (
    FINAL_NORM,
    POOLINGS,
    READOUTS,
    SCORED_READOUTS,
    SINK_RATIO,
    TOKENS,
)

__all__ = ["Exported", "Recipe", "export"]


# Largest difference of a coordinate, relative to the embedding's norm, that counts as rounding.
ROUNDING = 1e-5

# The copy of `layerwise.export.layer_modules` in the exported folder.
MODULES_FILE = "layerwise_modules.py"

CODE = """
The code in this folder drops tokens, because sentence-transformers has no module
for that. It runs such code only with `trust_remote_code=True`.
"""
STATE = """
With plain transformers the layer is
`AutoModel.from_pretrained('.')(...).hidden_states[{state}]`; the last hidden state is past it,
through the final norm.
"""


Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Recipe:
    """Layer, token selection, pooling and readout of embeddings.

    Attributes
    ----------
    layer : int
        0 (embedding output) to L (last block).
    tokens : {'all', 'drop_first', 'drop_sinks'}
    pooling : {'mean', 'weighted_mean', 'max', 'last_token', 'cls'}, optional
        By default that of the model's own embeddings.
    readout : {'final_norm', 'residual'}, optional
        By default, as in scores, the final norm is applied before pooling. A model without one
        has only ``residual``.
    normalize : bool, optional
        Scale embeddings to unit length; by default as the model does, as in scores.
    """

    layer: int
    tokens: str = "all"
    pooling: str | None = None
    readout: str | None = None
    normalize: bool | None = None

    def of(self, loaded: LoadedModel) -> Recipe:
        """The recipe with the defaults of a model."""
        readout = "residual" if loaded.anatomy.final_norm is None else "final_norm"
        return replace(
            self,
            pooling=self.pooling or loaded.embedder.pooling,
            readout=self.readout or readout,
            normalize=loaded.embedder.normalizes if self.normalize is None else self.normalize,
        )

    @property
    def representation(self) -> Representation:
        """Tokens, pooling and readout."""
        return Representation(self.tokens, self.pooling or "mean", self.readout or "residual")

    @property
    def needs_code(self) -> bool:
        """True if the folder needs a module with code."""
        return self.tokens != "all"


class Exported(NamedTuple):
    """Result of an export.

    Attributes
    ----------
    parameters, whole_parameters : int
        Numbers of parameters of the cut and the whole model.
    difference : float
        Largest difference of a coordinate from the whole model's embedding at that layer,
        relative to the embedding's norm.
    """

    folder: Path
    parameters: int
    whole_parameters: int
    difference: float


def export(
    loaded: LoadedModel,
    recipe: Recipe,
    target: Path,
    texts: Sequence[str],
    *,
    origin: str = "",
) -> Exported:
    """Save a model cut at a layer, if its embeddings equal the whole model's.

    Parameters
    ----------
    loaded : LoadedModel
        The whole model; it is not changed.
    target : Path
        A new or empty folder.
    texts : sequence of str
        Texts to compare the embeddings of both models on; at least one.
    origin : str
        Reason for the layer, for the model card.

    Raises
    ------
    LayerwiseError
        If the model takes no texts, or lacks the layer, tokens, pooling or readout; if the folder
        is not empty; if the model cannot be cut, or the saved model gives other embeddings.
    """
    recipe = recipe.of(loaded)
    check(loaded, recipe)
    check_target(target)
    wanted = _whole(loaded, recipe, texts)
    scale = np.linalg.norm(wanted, axis=1, keepdims=True)
    failures = []
    with replacing_folder(target) as folder:
        for n_blocks, state in _cuts(loaded, recipe):
            shutil.rmtree(folder)
            folder.mkdir()
            try:
                parameters = _save(loaded, recipe, n_blocks, state, folder)
                vectors = _encode(folder, loaded, texts)
            except Exception as error:
                if memory_fault(error) or disk_fault(error):
                    raise
                # Families differ in what they do with fewer blocks than they were made for, and
                # in what they raise; all errors are reported if no cut is right.
                failures.append(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
                continue
            # A module after the pooling may make fewer dimensions.
            vectors = np.pad(vectors, [(0, 0), (0, wanted.shape[1] - vectors.shape[1])])
            difference = float((np.abs(vectors - wanted) / np.where(scale > 0, scale, 1)).max())
            if difference <= ROUNDING:
                break
            failures.append(f"its embeddings differ by {difference:.1e} of their norm")
        else:
            raise LayerwiseError(
                f"{loaded.name} ({loaded.anatomy.kind}) cannot be cut at layer "
                f"{recipe.layer} by "
                f"leaving out its last blocks ({'; '.join(failures)}); nothing was saved.",
                code="unsupported",
            )
        (folder / "README.md").write_text(card_of(loaded, recipe, state, origin))
    whole: int = loaded.model.num_parameters()  # type: ignore[operator]
    return Exported(target, parameters, whole, difference)


def made_up_texts(n: int = 64) -> list[str]:
    """Distinct texts of 4 to 67 words, without meaning."""
    sentence = "seven old sailors watch storms from the pier and sing about long lives at sea"
    words = sentence.split(" ")
    return [" ".join(words[(i * j) % len(words)] for j in range(4 + i)) for i in range(n)]


def check(loaded: LoadedModel, recipe: Recipe) -> None:
    """Refuse a recipe that a model cannot follow."""
    loaded.require_model("export")
    if loaded.reader.takes != "text":
        raise LayerwiseError(
            f"{loaded.name} takes {loaded.reader.takes}s; export saves models of texts only.",
            code="unsupported",
        )
    if type(loaded.model).__module__.startswith("transformers_modules."):
        raise LayerwiseError(
            f"{loaded.name} runs code that came with it; export saves models of transformers' own "
            "code only.",
            code="unsupported",
        )
    check_words(recipe)
    check_layer(recipe, loaded.name, loaded.anatomy.n_layers - 1)
    has_norm = loaded.anatomy.final_norm is not None
    there = [name for name in SCORED_READOUTS if has_norm or name != FINAL_NORM]
    check_name("readout", recipe.readout, there)


def check_layer(recipe: Recipe, model: str, last: int) -> None:
    """Refuse a layer that a model does not have."""
    if not 0 <= recipe.layer <= last:
        raise LayerwiseError(
            f"layer: {model} has the layers 0 (embedding output) to {last}, got {recipe.layer}.",
            code="out_of_range",
        )


def check_words(recipe: Recipe) -> None:
    """Refuse words of a recipe that no model has."""
    asked = recipe.tokens, recipe.pooling, recipe.readout
    accepted = ("all", "drop_first", "drop_sinks"), POOLINGS, SCORED_READOUTS
    for key, name, names in zip(("tokens", "pooling", "readout"), asked, accepted, strict=True):
        if name is not None:
            check_name(key, name, names)


def check_target(target: Path) -> None:
    """Refuse a folder that is not empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LayerwiseError(
            f"{target} is there and not an empty folder; name one that is not there.",
            code="exists",
        )


def _whole(loaded: LoadedModel, recipe: Recipe, texts: Sequence[str]) -> Array:
    """The whole model's embeddings, shape (N, D)."""
    vectors = embed(loaded, texts, [recipe.representation])[0, recipe.layer]
    return normalized(vectors) if recipe.normalize else vectors


def _cuts(loaded: LoadedModel, recipe: Recipe) -> list[tuple[int, int | None]]:
    """Candidates, one of which is right: the number of blocks to keep, and the number of the layer
    among the hidden states; None for the last."""
    layer = recipe.layer
    if recipe.readout == "final_norm" or loaded.anatomy.final_norm is None:
        return [(layer, None)]
    # transformers lists the inputs of blocks, but their outputs for Mamba and RWKV.
    return [(layer + 1, layer), *([(layer, layer - 1)] if layer else [])]


def _cut(loaded: LoadedModel, n_blocks: int) -> nn.Module:
    """A copy of the model with only its first blocks."""
    anatomy = loaded.anatomy
    # The removed blocks are not copied.
    unused = set(anatomy.blocks[n_blocks:]) - set(anatomy.blocks[:n_blocks])
    model = copy.deepcopy(loaded.model, {id(block): nn.Identity() for block in unused}).cpu()
    parent = anatomy.path.rpartition(".")[0]
    for path, modules in dissect(model).lists.items():
        # XLM has several lists side by side, ALBERT one of fewer modules than layers.
        if path.rpartition(".")[0] == parent and len(modules) == len(anatomy.blocks):
            # The stream after the last block is no block's input, so we append a copy of a block.
            blocks = [*modules, copy.deepcopy(modules[-1])][:n_blocks]
            setattr(model.get_submodule(parent), path.rpartition(".")[2], nn.ModuleList(blocks))
    config: Any = model.config
    if hasattr(config, "quantization_config"):
        # Weights read from a GGUF file are ordinary ones by now.
        del config.quantization_config
        model.hf_quantizer = None  # type: ignore[assignment]
    whole = config.num_hidden_layers
    config.num_hidden_layers = n_blocks
    for key, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == whole and key != "architectures":
            setattr(config, key, [*value, value[-1]][:n_blocks])
    return model


def _save(
    loaded: LoadedModel, recipe: Recipe, n_blocks: int, state: int | None, folder: Path
) -> int:
    """Write the folder; returns the number of parameters."""
    require("sentence_transformers", "export")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    from layerwise.export import layer_modules

    model = _cut(loaded, n_blocks)
    config = cast("Any", model.config)
    is_output = recipe.layer == loaded.anatomy.n_layers - 1 and state is None
    further = copy.deepcopy(loaded.embedder.modules) if is_output else ()
    reads_layers = is_output and loaded.embedder.reads_layers
    config.output_hidden_states = state is not None or reads_layers
    tokenizer = copy.deepcopy(loaded.texts.tokenizer)
    tokenizer.padding_side = "right"
    settings: dict[str, Any] = {"max_seq_length": loaded.max_length}
    if (module := loaded.texts.module) is None:
        # sentence-transformers would apply the chat template to each text.
        tokenizer.chat_template = None
    else:
        keys = ("modality_config", "module_output_name", "processing_kwargs", "do_lower_case")
        settings |= {key: copy.deepcopy(getattr(module, key)) for key in keys}
        for bucket in settings["processing_kwargs"].values():
            bucket.pop("max_length", None)
    with tempfile.TemporaryDirectory(dir=folder.parent) as plain:
        model.save_pretrained(plain)  # type: ignore[operator]
        tokenizer.save_pretrained(plain)
        chain: list[Any] = [modules.Transformer(plain, **settings)]
    # sentence-transformers reads this setting, and does not save it by itself.
    chain[0].config_keys = [*modules.Transformer.config_keys, "do_lower_case"]
    hidden = loaded.anatomy.hidden
    if state is not None:
        # The first of the last two hidden states: the layer's, before the norm.
        weights = nn.Parameter(torch.tensor([1.0, 0.0]), requires_grad=False)
        layers = {"num_hidden_layers": state + 1, "layer_start": state}
        chain.append(modules.WeightedLayerPooling(hidden, **layers, layer_weights=weights))
    if recipe.tokens != "all":
        # It is saved by the name of its module, which is a file of the exported folder.
        names = {"__module__": MODULES_FILE.removesuffix(".py")}
        tokens: Any = type("TokenChoice", (layer_modules.TokenChoice,), names)
        chain.append(tokens(recipe.tokens, SINK_RATIO))
    # sentence-transformers has the same names without underscores: weightedmean, lasttoken.
    mode = recipe.representation.pooling.replace("_", "")
    if not any(isinstance(module, modules.Pooling) for module in further):
        counts = loaded.embedder.include_prompt
        chain.append(modules.Pooling(hidden, pooling_mode=mode, include_prompt=counts))
    chain += further
    if recipe.normalize:
        chain.append(modules.Normalize())
    text = loaded.embedder.prompt
    named: Any = {"prompts": {"default": text}, "default_prompt_name": "default"} if text else {}
    embedder = SentenceTransformer(modules=chain, device="cpu", **named)
    embedder.save(str(folder), create_model_card=False)
    if recipe.needs_code:
        shutil.copy(layer_modules.__file__, folder / MODULES_FILE)
    return int(model.num_parameters())  # type: ignore[operator]


def _encode(folder: Path, loaded: LoadedModel, texts: Sequence[str]) -> Array:
    """The saved model's embeddings of the texts."""
    from sentence_transformers import SentenceTransformer

    saved = SentenceTransformer(str(folder), device=str(loaded.device), trust_remote_code=True)
    return np.asarray(saved.encode(list(texts), show_progress_bar=False))


def card_of(loaded: LoadedModel, recipe: Recipe, state: int | None, origin: str) -> str:
    """Write the card: origin of the model, the cut, how to load it.

    Parameters
    ----------
    state : int or None
        Number of the layer among transformers' hidden states; None for the last.
    origin : str
        Reason for the layer; left out if empty.
    """
    hub = getattr(loaded.entry.source, "hub", "")
    last = loaded.anatomy.n_layers - 1
    template = files(__package__).joinpath("card.md").read_text(encoding="utf-8")
    card = template.format(
        base_model=f"base_model: {hub}\n" if hub else "",
        model=loaded.name,
        revision=loaded.revision,
        weights=loaded.weights[:12],
        layer=recipe.layer,
        last=last,
        tokens=TOKENS[recipe.tokens],
        pooling=recipe.pooling,
        readout=READOUTS[recipe.representation.readout],
        unit="yes" if recipe.normalize else "no",
        origin=f"\nWhy this layer: {origin}.\n" if origin else "",
        trust=", trust_remote_code=True" if recipe.needs_code else "",
        layerwise=version("layerwise"),
        sentence_transformers=version("sentence-transformers"),
        transformers=version("transformers"),
    )
    card += CODE if recipe.needs_code else ""
    return card + (STATE.format(state=state) if state is not None else "")
