"""Load a model with its tokenizer, ready for hooks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from layerwise.config.models import Model
from layerwise.corpora.prompts import Medium
from layerwise.errors import Code, LayerwiseError
from layerwise.io.files import memory_fault
from layerwise.models import devices, hooks, saved
from layerwise.models.architectures import Anatomy, attend_both_ways, settle, unsupported
from layerwise.models.hooks import on
from layerwise.models.probe import causal, find_layers
from layerwise.models.source import ADAPTER, Location, adapter_alone, locate, quiet, why
from layerwise.models.states import States
from layerwise.models.texts import LazyPrompt, Reader, Texts, reader_of

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Prompt = LazyPrompt | Sequence[Any]
"""A prompt as a model takes it: a file of a medium, token ids, or given states of tokens."""

# Converts the next texts to tokens while the model runs.
AHEAD = ThreadPoolExecutor(1, thread_name_prefix="prompts")


@dataclass(frozen=True)
class LoadedModel:
    """A model at one revision on one device.

    Attributes
    ----------
    reader : Reader or States
        Converts what the model takes to its inputs.
    weights : str
        SHA-256 of the weights with merged adapters; see `saved.weights_hash`.
    claim : Claim
        Reserves the device while this object lives.
    entry : Model
        The entry of a config that it was made from.
    embedder : Embedder
        Settings of sentence-transformers, or its defaults for other models.
    """

    name: str
    revision: str
    model: nn.Module
    reader: Reader | States
    anatomy: Anatomy
    dtype: str
    weights: str
    claim: devices.Claim
    entry: Model
    embedder: saved.Embedder = saved.Embedder()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        last = self.anatomy.hidden - 1
        if max(self.entry.drop_dimensions, default=0) > last:
            raise LayerwiseError(
                f"{self.name}: drop_dimensions: its states have dimensions 0 to {last}, not "
                f"{max(self.entry.drop_dimensions)}.",
                code="out_of_range",
            )
        n_streams, stream = self.anatomy.layout.streams, self.entry.stream
        if stream != "mean" and stream >= n_streams:
            raise LayerwiseError(
                f"{self.name}: stream: it has {n_streams} residual stream"
                f"{'s' * (n_streams > 1)}, counted from 0, not {stream + 1}; leave out stream, or "
                "name one that is there.",
                code="out_of_range",
            )

    @property
    def width(self) -> int:
        """Width of embeddings: of the layers', or of the output's if that is wider."""
        return max(self.anatomy.hidden, self.anatomy.output, self.embedder.width)

    def facts(self) -> dict[str, Any]:
        """How inputs and layers are read, for a file's record."""
        facts, anatomy = self.reader.facts(), self.anatomy
        if self.entry.drop_dimensions:
            facts["drop_dimensions"] = self.entry.drop_dimensions
        if anatomy.layout.streams > 1:
            facts |= {"stream": str(self.entry.stream), "streams": anatomy.layout.streams}
        if max(anatomy.passes, default=1) > 1:
            facts |= {"blocks": anatomy.names, "passes": anatomy.passes}
        return facts

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs."""
        return self.reader.device

    @property
    def max_length(self) -> int:
        """The longest prompt in tokens, special tokens included."""
        return self.reader.max_length

    def can_give(self, inputs: Iterable[str]) -> bool:
        """True if the inputs of a metric are available; a user's own states lack some."""
        return self.reader.lacks.isdisjoint(inputs)

    def require_model(self, what: str) -> None:
        """Refuse what cannot be had from given states.

        Raises
        ------
        LayerwiseError
        """
        if isinstance(self.reader, States):
            raise LayerwiseError(
                f"{self.name} holds states alone; {what} needs the model itself.",
                code="unsupported",
            )

    @property
    def texts(self) -> Texts:
        """The reader of a model that takes texts.

        Raises
        ------
        LayerwiseError
            If the model takes something else, or there are states alone.
        """
        self.require_model("what asks for a tokenizer")
        if not isinstance(self.reader, Texts):
            raise self._other_kind("text")
        return self.reader

    def prompts_ahead(
        self, parts: Iterable[Sequence[Any]]
    ) -> Iterator[tuple[list[Prompt], list[int]]]:
        """Convert each part of a corpus to prompts, in a thread ahead of the caller.

        Parameters
        ----------
        parts : iterable of sequences
            Texts, or files (`layerwise.corpora.prompts.Medium`).

        Yields
        ------
        tuple
            Prompts, and the number of tokens cut off each.
        """
        coming = (AHEAD.submit(self._prompts, list(part)) for part in parts)
        for ready, _ in pairwise(chain(coming, [None])):
            assert ready is not None
            yield ready.result()

    def _prompts(self, inputs: list[Any]) -> tuple[list[Prompt], list[int]]:
        for item in inputs:
            kind = item.kind if isinstance(item, Medium) else "text"
            if kind != self.reader.takes:
                raise self._other_kind(kind)
        prompts, n_cut = self.reader.prompts(inputs)
        return list(prompts), n_cut

    def _other_kind(self, kind: str) -> LayerwiseError:
        return LayerwiseError(
            f"{self.name} takes {self.reader.takes}s, but was given {kind}s; in a config, name "
            "its corpora and tasks in the studies.",
            code="conflict",
        )

    def inputs(self, prompts: Sequence[Any]) -> dict[str, Tensor]:
        """Inputs of a batch, on the model's device."""
        return on(self.device, self.reader.inputs(prompts))

    def example(self) -> dict[str, Tensor]:
        """Inputs for a few prompts of one length, on the model's device."""
        self.require_model("a pass")
        return on(self.device, cast("Reader", self.reader).example())

    @cached_property
    def is_causal(self) -> bool:
        """True if no state depends on later tokens, tested with two short prompts."""
        if isinstance(self.reader, States):
            return False
        return causal(self.model, self.anatomy, self.example(), self.reader.time_axis)

    def check_tokens(self, choices: Collection[str]) -> None:
        """Check that the model has the selected tokens.

        Raises
        ------
        LayerwiseError
            If a text model has no patches, a model has no class token, or there is one vector a
            text.
        """
        if "drop_sinks" in choices and self.embedder.reads_layers:
            raise LayerwiseError(
                f"tokens: the WeightedLayerPooling of {self.name} averages the states of a token "
                "over layers, whose sinks differ; leave out drop_sinks.",
                code="unsupported",
            )
        has = {"patches": self.anatomy.prefix is not None, "class": self.anatomy.has_class}
        has_tokens = "tokens" not in self.reader.lacks
        for name in choices:
            if not has.get(name, has_tokens or name == "all"):
                raise LayerwiseError(
                    f"tokens: {self.name} (architecture {self.anatomy.kind!r}) takes "
                    f"{self.reader.takes}s and has no {name!r} tokens; set others in its entry "
                    "(tokens: [all]).",
                    code="unsupported",
                )

    def not_finite(self, where: str) -> LayerwiseError:
        """The error for NaN or infinity in the states, and where they are ("layer 3 for …")."""
        remedy = (
            "check the weights, which hold NaN or infinity or lead to them."
            if self.dtype == "float32"
            else "try dtype: float32, or check the weights."
        )
        return LayerwiseError(
            f"{self.name} at {self.revision!r} gives NaN or infinity at {where} in {self.dtype}; "
            f"{remedy}",
            code="not_finite",
        )


def load(
    name: str, model: Model, revision: str, *, device: str = "auto", dtype: str = "float32"
) -> LoadedModel:
    """Load a model of the config.

    Parameters
    ----------
    name : str
        Its name in files and messages.
    model : Model
        Its entry in the config. Its `dtype` is ignored: pass that of ``model.override(settings)``.
    revision : str
        One of its checkpoints.
    device : str
        As for `layerwise.models.devices.pick`.
    dtype : {'float32', 'bfloat16', 'float16'}

    Raises
    ------
    LayerwiseError
        If the model is missing, its weights do not fit its config, or its layers cannot be
        read.
    """
    from transformers import AutoModel

    claim = devices.pick(device, spread=model.device_map is not None)
    who, location = f"Model {name!r} at {revision!r}", locate(model.source, revision)
    log.info("%s: loading from %s", who, location.name)
    embedder = saved.Embedder()
    with reading(who, location):
        if location.gguf_file is None and saved.beside_weights(location, ADAPTER):
            raise adapter_alone(location.name)
        is_saved = bool(saved.entries(location))
        if is_saved:
            opened, info = saved.open_saved(location, model, DTYPES[dtype])
            whole, embedder = opened.transformers_model, saved.embedder_of(opened, who)
            processor = saved.text_module(opened)
            if (kind := reader_of(whole.config)) is not Texts:
                folder = {"subfolder": saved.transformer_folder(location), **location.options()}
                processor = kind.open_processor(location.name, model.preprocess, **folder)
    if not is_saved:
        whole, processor, info = read(who, model, location, AutoModel, dtype)
    if location.gguf_file is None:
        saved.check_files(who, location, whole.config)
        if not getattr(processor, "do_lower_case", False):  # of sentence-transformers
            saved.compare_tokenizer(who, location, getattr(processor, "tokenizer", processor))
    for adapter in model.adapters:
        saved.merge(whole, adapter)
    network = body(whole)
    saved.check_weights(who, whole, network, info)
    settle(network)
    if model.bidirectional:
        attend_both_ways(network)
    network.eval().requires_grad_(False)
    sha256 = saved.weights_hash(network)
    if model.device_map is None:
        try:
            network.to(claim.device)
        except torch.OutOfMemoryError as error:
            raise LayerwiseError(f"{who}: {why(error, location)}", code="no_memory") from error
    return prepare(
        name,
        network,
        processor,
        model,
        revision=revision,
        dtype=dtype,
        weights=sha256,
        claim=claim,
        embedder=embedder,
    )


def read(
    who: str, model: Model, location: Location, architecture: Any, dtype: str
) -> tuple[Any, Any, Any]:
    """Read a network and its tokenizer or processor from their files.

    The network is of `architecture`, such as transformers' ``AutoModel``. The third result says
    which weights were missing or left over.
    """
    from transformers import AutoConfig

    common = {"trust_remote_code": model.trust_remote_code, **location.options()}
    placed = {} if model.device_map is None else {"device_map": model.device_map}
    with reading(who, location):
        config = AutoConfig.from_pretrained(location.name, **common)
        # A config.json may name attention kernels on the hub, which are code.
        config._attn_implementation = config._experts_implementation = None
        kind = reader_of(config)
        processor = kind.open_processor(location.name, model.preprocess, **common)
        # Shapes that do not fit are reported with the other weights.
        network, info = architecture.from_pretrained(
            location.name,
            config=config,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **placed,
            **common,
        )
    return network, processor, info


@contextmanager
def reading(who: str, location: Location) -> Iterator[None]:
    """Say in one sentence why a model cannot be read."""
    quiet()
    try:
        yield
    except (KeyboardInterrupt, SystemExit, LayerwiseError):
        raise
    # Tokenizers are written in Rust, whose panics are not an Exception.
    except BaseException as error:
        code: Code = "no_memory" if memory_fault(error) else "unreadable"
        raise LayerwiseError(f"{who}: {why(error, location)}", code=code) from error


def body(network: Any) -> Any:
    """The part of a model that is read: the encoder of an encoder-decoder, or a tower."""
    encoder = network.get_encoder() if network.config.is_encoder_decoder else network
    if not hasattr(encoder, "config"):
        raise unsupported(f"{type(network).__name__} has an encoder without a configuration")
    return reader_of(encoder.config).body(encoder)


def prepare(
    name: str,
    network: Any,
    processor: Any,
    entry: Model,
    *,
    revision: str,
    embedder: saved.Embedder = saved.Embedder(),  # noqa: B008 (frozen)
    **facts: Any,
) -> LoadedModel:
    """Prepare a network on its device for reading, with a short pass.

    Parameters
    ----------
    processor
        Its tokenizer, image processor or feature extractor.
    entry : Model
        Settings of its inputs.
    **facts
        Further attributes of the `LoadedModel`.

    Raises
    ------
    LayerwiseError
        If the layers cannot be read, or the entry has settings of the other kind of model.
    """
    who = f"Model {name!r} at {revision!r}"
    network.config.return_dict = True  # a config may ask for tuples
    kind = reader_of(network.config)
    for key in kind.unused:
        if getattr(entry, key) is not None:
            raise LayerwiseError(
                f"{who}: the model takes {kind.takes}s; leave out {key}.", code="conflict"
            )
    reader = kind(who, processor, entry, network)
    anatomy = find_layers(name, network, reader)
    example = on(reader.device, reader.example())
    hooks.check_ablations(who, network, anatomy, entry.ablate, example)
    loaded = LoadedModel(
        name, revision, network, reader, anatomy, entry=entry, embedder=embedder, **facts
    )
    if entry.bidirectional and loaded.is_causal:
        raise LayerwiseError(
            f"{type(network).__name__} has no attention that can be made bidirectional; leave out "
            "bidirectional: true for this model.",
            code="unsupported",
        )
    return loaded
