"""Files of a model: its weights, its adapters, and what sentence-transformers saves with it.

LLM2Vec's models are Llama 3 with bidirectional attention and one or two PEFT adapters, merged one
after another. PEFT reads and merges them; only safetensors are read.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

import torch
from torch import Tensor, nn

from layerwise.config.models import FolderAdapter, HubAdapter, Model
from layerwise.errors import LayerwiseError, first_line
from layerwise.models.architectures import dissect, unsupported
from layerwise.models.source import ADAPTER, Location, locate
from layerwise.project import require

log = logging.getLogger(__name__)

ADAPTER_FILES = [ADAPTER, "adapter_model.safetensors"]
# Names of poolings in sentence-transformers, and ours.
POOLINGS = {
    "mean": "mean",
    "weightedmean": "weighted_mean",
    "max": "max",
    "lasttoken": "last_token",
    "cls": "cls",
}
# Modules that we apply to the output; others need more than a model's states.
APPLIED = ("Pooling", "Dense", "LayerNorm", "Normalize", "WeightedLayerPooling", "truncate_dim")
MODULES = "modules.json"
OUTPUT = "last_hidden_state"
# What tokenizers differ in: capitals, accents, digits, blanks and the first word.
SAMPLES = ("the quick brown fox", "Zürich's  naïve 12,345 cafés\n")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Masks and positions in checkpoints of older versions of transformers, which computes them now.
OLD_BUFFERS = re.compile(
    r"(?:attn\.bias|attention\.bias|masked_bias|inv_freq|position_ids|relative_position_index)$"
)


def entries(location: Location) -> list[dict[str, Any]]:
    """The list of a model's modules; empty where sentence-transformers has not saved it."""
    file = None if location.gguf_file else _file(location, MODULES)
    return json.loads(file.read_text(encoding="utf-8")) if file else []


def transformer_folder(location: Location) -> str:
    """The folder of the transformer among a model's files; empty for the model's own."""
    return str(next(iter(entries(location)), {}).get("path", ""))


def beside_weights(location: Location, name: str) -> Path | None:
    """The path of a file in the folder of the transformer; None if there is none."""
    return _file(location, str(PurePosixPath(transformer_folder(location), name)))


def open_saved(location: Location, entry: Model, dtype: torch.dtype) -> tuple[Any, Any]:
    """A saved model of sentence-transformers, and the loading info of its transformer.

    The info says which weights were missing or left over.
    """
    require("sentence_transformers", "export")
    from sentence_transformers import SentenceTransformer
    from transformers import AutoConfig

    weights: dict[str, Any] = {"use_safetensors": True, "ignore_mismatched_sizes": True}
    place = {} if entry.device_map is None else {"device_map": entry.device_map}
    model = SentenceTransformer(
        location.name,
        device=None if place else "cpu",
        trust_remote_code=entry.trust_remote_code,
        model_kwargs={"dtype": dtype, **weights, **place},
        # A config.json may name attention kernels on the hub, which are code.
        config_kwargs={"_attn_implementation": None, "_experts_implementation": None},
        **{"local_files_only": True} | location.options(),
    )
    network: Any = transformer_of(model, location.name)
    # Their shapes alone, since sentence-transformers hides the info of the weights that it loads.
    common = {"subfolder": transformer_folder(location), **location.options()}
    common["trust_remote_code"] = entry.trust_remote_code
    infos = [
        type(network).from_pretrained(
            location.name,
            config=config,
            device_map="meta",
            output_loading_info=True,
            **weights,
            **common,
        )[1]
        # Settings of sentence-transformers may leave out what config.json has.
        for config in (
            copy.deepcopy(network.config),
            AutoConfig.from_pretrained(location.name, **common),
        )
    ]
    infos[0]["unexpected_keys"] &= infos[1]["unexpected_keys"]
    return model, infos[0]


def transformer_of(model: Any, who: str) -> nn.Module:
    """The transformer in a model of sentence-transformers.

    Raises
    ------
    LayerwiseError
        If the model does not begin with one, or takes another output than its last hidden state.
    """
    first, network = model[0], model.transformers_model
    ways = getattr(first, "modality_config", {})
    way = ways.get("message") or ways.get("text") or {}
    output = way.get("method_output_name", OUTPUT)
    if network is None or type(first).__name__ == "Router":
        raise unsupported(
            f"{who} begins with {type(first).__name__}, which has no layers of one model"
        )
    if (way.get("method", "forward"), output) != ("forward", OUTPUT):
        raise unsupported(f"{who} makes its embeddings of {output}, not of its {OUTPUT}")
    return cast("nn.Module", network)


@dataclass(frozen=True)
class Embedder:
    """Settings of sentence-transformers for a model's embeddings.

    Attributes
    ----------
    pooling : str
        Pooling of the tokens; ``mean`` where it has none of ours, such as several together.
    prompts : mapping
        Saved prompts by name.
    prompt : str
        Default prompt in front of each text.
    include_prompt : bool
        True if its tokens count in the pooling.
    normalizes : bool
        True if embeddings are scaled to unit length.
    modules : tuple of Module
        Applied to the output of the model, and to no other layer. A pooling comes first among
        them where it is none of ours, or something comes before it.
    """

    pooling: str = "mean"
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""
    include_prompt: bool = True
    normalizes: bool = False
    modules: tuple[nn.Module, ...] = ()

    @property
    def width(self) -> int:
        """Width of the embeddings after the modules; 0 where there are none."""
        widths = (getattr(m, "get_embedding_dimension", int)() for m in reversed(self.modules))
        return next(filter(None, widths), 0)

    @property
    def reads_layers(self) -> bool:
        """True if a module reads the states of every layer."""
        return any(type(module).__name__ == "WeightedLayerPooling" for module in self.modules)

    @torch.inference_mode()
    def apply(
        self, states: Tensor, mask: Tensor, pooled: Tensor, layers: Sequence[Tensor] = ()
    ) -> Tensor:
        """Apply the modules to a batch's pooled output, given its token states too, and those of
        every layer where they are read."""
        features: dict[str, Any] = {
            "token_embeddings": states,
            "attention_mask": mask.long(),
            "sentence_embedding": pooled,
            "all_layer_embeddings": layers,
        }
        for module in self.modules:
            features = module.to(pooled.device)(features)
        return cast("Tensor", features["sentence_embedding"])


def embedder_of(model: Any, who: str) -> Embedder:
    """The settings of a model of sentence-transformers, with copies of its modules.

    Parameters
    ----------
    who : str
        The model, for one warning of what layers cannot have.
    """
    chain = [(type(m).__name__, m) for m in [*model.children()][1:]]
    if model.truncate_dim is not None:
        from sentence_transformers.sentence_transformer.modules import Dense

        with model.truncate_embeddings(None):
            width = model.get_embedding_dimension()
        first = torch.eye(min(model.truncate_dim, width), width)
        chain.append(("truncate_dim", Dense(width, len(first), False, None, first)))
    chain = [(name, module) for name, module in chain if name != "Dropout"]
    names = [name for name, _ in chain]
    pooling = dict(chain).get("Pooling")
    mode = getattr(pooling, "pooling_mode", "mean")
    normalizes = names[-1:] == ["Normalize"]
    # Layers can have a pooling of ours, which comes first, and the scaling at the end.
    rest = slice(int(names[:1] == ["Pooling"] and mode in POOLINGS), -1 if normalizes else None)
    modules, others = [module for _, module in chain[rest]], " and ".join(names[rest])
    if not set(names) <= set(APPLIED):
        log.warning("%s: %s of its embeddings are left out, also of its output.", who, others)
        modules = []
    elif modules:
        log.warning("%s: %s of its embeddings apply to its output only.", who, others)
    prompts = {name: text or "" for name, text in (model.prompts or {}).items()}
    # sentence-transformers counts the tokens of a prompt that it writes into a chat template.
    is_chat = "message" in getattr(model[0], "modality_config", ())
    return Embedder(
        pooling=POOLINGS.get(mode, "mean"),
        prompts=prompts,
        prompt=prompts.get(model.default_prompt_name) or "",
        include_prompt=is_chat or getattr(pooling, "include_prompt", True),
        normalizes=normalizes,
        modules=tuple(copy.deepcopy(module).float().eval() for module in modules),
    )


def text_module(model: Any, tokenizer: Any = None) -> Any:
    """A copy of the module of sentence-transformers that prepares texts; a tokenizer if it is of
    another kind.

    Parameters
    ----------
    tokenizer : optional
        In place of the model's.
    """
    from sentence_transformers.sentence_transformer.modules import Transformer

    module = copy.copy(model[0])
    if not isinstance(module, Transformer):
        return copy.deepcopy(tokenizer or model.tokenizer)
    module.processor, module.unpad_inputs = copy.deepcopy(tokenizer or module.processor), False
    return module


def merge(model: nn.Module, adapter: HubAdapter | FolderAdapter) -> None:
    """Add an adapter to the weights of a model, in place.

    Raises
    ------
    LayerwiseError
        If the adapter is missing, damaged, cannot be merged, or fits another model.
    """
    require("peft", "adapters")
    from huggingface_hub import snapshot_download
    from peft import PeftConfig, PeftModel, set_peft_model_state_dict
    from safetensors.torch import load_file

    location = locate(adapter)
    head = str(model.base_model_prefix)
    try:
        folder = location.folder or Path(
            snapshot_download(location.name, allow_patterns=ADAPTER_FILES, **location.options())
        )
        # PEFT alone would read pickle files, too.
        weights = load_file(folder / ADAPTER_FILES[1])
        config = PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning:
            raise ValueError(f"{config.peft_type} is no change of weights")
        # A model without a head has no task.
        config.task_type = None
        base: Any = model
        inner = f"base_model.model.{head}."
        if any(key.startswith(inner) for key in weights):
            # The adapter's names are those of a model with a head, which no layer reads.
            base = nn.ModuleDict({head: model})
            base.config = model.config
            weights = {key: value for key, value in weights.items() if key.startswith(inner)}
            names = {path.rpartition(".")[2] for path, _ in model.named_modules()}
            saved = [name for name in config.modules_to_save or () if name in names]
            config.modules_to_save = saved or None
        wrapped = PeftModel(base, config)
        loaded = set_peft_model_state_dict(wrapped, weights)
        # PEFT would leave missing weights random and ignore the others.
        unfit = [*(k for k in loaded.missing_keys if "lora_" in k), *loaded.unexpected_keys]
        if unfit:
            raise ValueError(f"the model and the adapter do not both have {unfit[0]}")
        wrapped.merge_and_unload()
    except MemoryError:
        raise
    except Exception as error:  # PEFT fails in many ways on unusual files
        raise LayerwiseError(
            f"The adapter {location.name} cannot be merged into {type(model).__name__} "
            f"({first_line(error)}); check that it is an adapter of this model, saved by PEFT as "
            "safetensors, or fetch or copy it again.",
            code="unreadable",
        ) from error
    log.info("merged the adapter %s", location.name)


def check_weights(who: str, network: Any, body: nn.Module, info: Any) -> None:
    """Refuse weights that do not fit their config, by transformers' loading info.

    transformers fills missing weights with random numbers and ignores others, with a warning at
    most.
    """
    # Checkpoints of encoders lack the decoder. Poolers are not read, and BERT's language models
    # lack them. Wav2Vec2 has masks in training alone.
    unread = ("decoder.",) if network.config.is_encoder_decoder else ()
    never = re.compile("pooler|masked_spec_embed")
    missing = (n for n in info["missing_keys"] if not never.search(n))
    lacking = [n for n in missing if not n.startswith(unread)]
    unfit = [*lacking, *_unread_weights(network, body, info["unexpected_keys"])]
    unfit += [name for name, *_ in info["mismatched_keys"]]
    heads = [name for name in info["unexpected_keys"] if name.endswith("lm_head.weight")]
    if heads and unfit == lacking and all("embed" in name for name in unfit) and unfit:
        raise LayerwiseError(
            f"{who}: its token embeddings are saved as {heads[0]} alone; open it by transformers' "
            "AutoModelForCausalLM, save it by save_pretrained, and name the new folder.",
            code="mismatch",
        )
    if unfit:
        raise LayerwiseError(
            f"{who}: its weights do not fit its config.json ({min(unfit)} is missing, unexpected "
            "or of another shape); fetch or copy both again, or correct config.json.",
            code="mismatch",
        )


def _unread_weights(network: Any, body: nn.Module, unexpected: Iterable[str]) -> list[str]:
    """Unexpected weights of blocks; others are of a head or another tower, which nothing reads."""
    stack = dissect(body)
    block = re.compile(rf"(?:^|\.){re.escape(stack.path or '?')}\.(\d+)\.")
    path = next((name for name, module in network.named_modules() if module is body), "")
    prefix = network.base_model_prefix
    prefixes = {"", path, prefix, f"{prefix}.{path}"}
    # Blocks behind the last may be for the prediction of several tokens, which nothing reads.
    depth = stack.depth + (getattr(body.config, "num_nextn_predict_layers", None) or 0)
    unread = []
    for name in unexpected:
        if match := block.search(name):
            number, is_of_body = int(match[1]), name[: match.start()] in prefixes
            inside = number < stack.depth and is_of_body and not OLD_BUFFERS.search(name)
            if number >= depth or inside:
                unread.append(name)
    return unread


def compare_tokenizer(who: str, location: Location, tokenizer: Any) -> None:
    """Warn if transformers makes other tokens than the tokenizer.json that it was given.

    For some classes it derives the rules from tokenizer_config.json.
    """
    from tokenizers import Tokenizer

    path = beside_weights(location, "tokenizer.json")
    if path is None or not hasattr(tokenizer, "get_vocab"):
        return
    of_file = Tokenizer.from_file(str(path))
    of_file.no_padding()
    of_file.no_truncation()
    for text in SAMPLES:
        ids, expected = tokenizer(text)["input_ids"], of_file.encode(text).ids
        if ids != expected:
            log.warning(
                "%s: %s reads %r as %s, and its tokenizer.json as %s; if the model was trained "
                "with that file, set tokenizer_class: PreTrainedTokenizerFast in its "
                "tokenizer_config.json.",
                *(who, type(tokenizer).__name__, text, ids, expected),
            )
            return


def check_files(who: str, location: Location, config: Any) -> None:
    """Refuse safetensors of which transformers would read another tensor than the one meant.

    transformers reads all tensors of a shard, also one that the index gives to another shard, and
    takes the numbers of quantised weights as they are if config.json does not name the method.

    Raises
    ------
    LayerwiseError
        If a tensor stands in two files, or weights are quantised without a method.
    """
    listed, single = (beside_weights(location, name) for name in (INDEX, SINGLE))
    text = listed.read_text(encoding="utf-8") if listed else "{}"
    index = json.loads(text).get("weight_map", {})
    if index and single:
        raise LayerwiseError(
            f"{who}: {SINGLE} stands beside the files that {INDEX} names, and only one of both "
            "can be meant; remove the other.",
            code="conflict",
        )
    files = {shard: beside_weights(location, shard) for shard in index.values()}
    for shard, path in ({SINGLE: single} | files).items():
        for name, dtype in _tensors(path).items() if path else ():
            if index.get(name, shard) != shard:
                raise LayerwiseError(
                    f"{who}: {name} stands in {shard}, and {INDEX} says that it is in "
                    f"{index[name]}; fetch or copy the model again into an empty folder.",
                    code="mismatch",
                )
            quantised = dtype.startswith(("F8", "I8", "U8")) and name.endswith("weight")
            if quantised and getattr(config, "quantization_config", None) is None:
                raise LayerwiseError(
                    f"{who}: {name} in {shard} is of type {dtype}, and config.json has no "
                    "quantization_config to read it by; add it, or use the model in bfloat16.",
                    code="mismatch",
                )


def _file(location: Location, name: str) -> Path | None:
    """The path of a model's file, in its folder, the cache or the hub; None if there is none."""
    from transformers.utils import cached_file

    file = cached_file(
        location.name,
        name,
        revision=location.revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(file) if file else None


def _tensors(path: Path) -> dict[str, str]:
    """The type of each tensor of a safetensors file, by name, from its header."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {name: about["dtype"] for name, about in header.items() if name != "__metadata__"}


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over all parameters and buffers: names, shapes, types, bytes.

    Raises
    ------
    LayerwiseError
        If some of them are not on any device (they did not fit).
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_meta:
            raise LayerwiseError(
                f"{type(model).__name__} does not fit into the memory of the visible GPUs "
                f"together ({name} was left over); use more of them, or a smaller dtype.",
                code="no_memory",
            )
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()
