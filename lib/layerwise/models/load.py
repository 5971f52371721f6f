"""Load a model with its tokenizer, ready for hooks."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.config.models import Model
from layerwise.corpora.images import Picture
from layerwise.errors import LayerwiseError
from layerwise.models import adapters, devices
from layerwise.models.architectures import LONGEST, POSITIONS_FROM_PADS, Anatomy, dissect, settle
from layerwise.models.failures import NO_TOKENIZER, why
from layerwise.models.images import Images, Pixels, reader_of, takes_images, tower
from layerwise.models.probe import LENGTH, causal, example_texts, probe
from layerwise.models.source import Location, locate, quiet

log = logging.getLogger(__name__)

# A tokenizer's output takes hundreds of bytes per token, the ids only a few.
TEXTS_AT_ONCE = 256

UNLIMITED = 10**9

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Prompt = Pixels | Sequence[int]
"""A prompt as a model takes it: an image, or token ids."""


@dataclass(frozen=True)
class LoadedModel:
    """A model at one revision on one device, with its tokenizer or image processor.

    Attributes
    ----------
    tokenizer
        None for a model that takes images.
    max_length : int
        The longest prompt in tokens, special tokens included.
    weights : str
        SHA-256 of the weights with merged adapters; see `weights_hash`.
    claim : Claim
        Reserves the device while this object lives.
    images : Images, optional
        Inputs of a vision model; None for a text model.
    """

    name: str
    revision: str
    model: nn.Module
    tokenizer: Any
    anatomy: Anatomy
    device: torch.device
    dtype: str
    max_length: int
    special_tokens: bool
    weights: str
    claim: devices.Claim
    images: Images | None = None

    def prompts_ahead(
        self, parts: Iterable[Sequence[Any]]
    ) -> Iterator[tuple[list[Prompt], list[int]]]:
        """Convert each part of a corpus to prompts, in a thread ahead of the caller.

        Parameters
        ----------
        parts : iterable of sequences
            Texts, or images (`layerwise.corpora.images.Picture`).

        Yields
        ------
        tuple
            Prompts, and the number of tokens cut off each.
        """
        pool = ThreadPoolExecutor(1, thread_name_prefix="prompts")
        try:
            upcoming = None
            for part in parts:
                ready, upcoming = upcoming, pool.submit(self._prompts, list(part))
                if ready is not None:
                    yield ready.result()
            if upcoming is not None:
                yield upcoming.result()
        finally:
            # No waiting: after a failure, the garbage collector may end this in a thread that
            # another thread waits for.
            pool.shutdown(wait=False)

    def _prompts(self, part: list[Any]) -> tuple[list[Prompt], list[int]]:
        if self.images is None:
            ids, n_cut = self.tokenize(part)
            return list(ids), n_cut
        self._check_kind(part)
        return [Pixels(picture, self.images) for picture in part], [0] * len(part)

    @property
    def stand_in(self) -> int:
        """The token of an empty text: the end of text, or else the padding."""
        end = self.tokenizer.eos_token_id
        return int(self.tokenizer.pad_token_id if end is None else end)

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Begin to read the images of a later batch."""
        for prompt in prompts:
            if isinstance(prompt, Pixels):
                prompt.start()

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Inputs of a batch, on the model's device. Texts are padded on the right, so no token
        of a decoder or a recurrent model sees the pads."""
        if self.images is not None:
            given = self.images.inputs(prompts)  # type: ignore[arg-type]
        else:
            lengths = torch.tensor([len(p) for p in prompts])
            longest = int(lengths.max())
            tokens = torch.full((len(prompts), longest), int(self.tokenizer.pad_token_id))
            for row, prompt in enumerate(prompts):
                tokens[row, : len(prompt)] = torch.tensor(prompt)
            given = {"input_ids": tokens}
            if int(lengths.min()) < longest:
                # Without padding no mask is needed, and attention takes its fastest path.
                given["attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        return {name: tensor.to(self.device) for name, tensor in given.items()}

    @property
    def n_embeddings(self) -> int:
        """Number of token embeddings."""
        return len(self.model.get_input_embeddings().weight)  # type: ignore[operator]

    def is_causal(self) -> bool:
        """True if no state depends on later tokens, tested with two short prompts."""
        if self.images is None:
            tokens = torch.arange(1, 1 + 2 * LENGTH, device=self.device)[None] % self.n_embeddings
            other = torch.cat([tokens[:, :LENGTH], tokens[:, LENGTH:].flip(1)], dim=1)
            pair = [{"input_ids": tokens}, {"input_ids": other}]
        else:
            pair = [
                {name: tensor.to(self.device) for name, tensor in given.items()}
                for given in self.images.halves()
            ]
        return causal(self.model, self.anatomy, *pair)

    def check_tokens(self, choices: Iterable[str]) -> None:
        """Check that the model has the selected tokens.

        Raises
        ------
        LayerwiseError
            If a text model has no patches, or a model has no class token.
        """
        has = {"patches": self.anatomy.prefix is not None, "class": self.anatomy.has_class}
        for name in choices:
            if not has.get(name, True):
                what = "images" if self.images else "texts"
                raise LayerwiseError(
                    f"tokens: {self.name} (architecture {self.anatomy.kind!r}) takes {what} and "
                    f"has no {name!r} tokens; set others in its entry (tokens: [all]).",
                    code="unsupported",
                )

    def _check_kind(self, part: Sequence[Any]) -> None:
        takes, other = ("texts", "images") if self.images is None else ("images", "texts")
        if part and isinstance(part[0], Picture) != (takes == "images"):
            raise LayerwiseError(
                f"{self.name} takes {takes}, but was given {other}; name its corpora and tasks in "
                "the studies.",
                code="conflict",
            )

    def tokenize(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """Token ids of each text, cut at `max_length`, and the number of tokens cut off each.

        Raises
        ------
        LayerwiseError
            If a token has no embedding, or the model takes images.
        """
        self._check_kind(texts)
        ids: list[list[int]] = []
        n_cut: list[int] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = texts[start : start + TEXTS_AT_ONCE]
            full = self._tokenized(part)["input_ids"]
            largest = max((max(found, default=0) for found in full), default=0)
            if largest >= self.n_embeddings:
                raise LayerwiseError(
                    f"The tokenizer of {self.name!r} at {self.revision!r} gives token {largest}, "
                    f"but the model has embeddings of tokens 0 to {self.n_embeddings - 1} alone; "
                    "put the tokenizer of this model into its folder.",
                    code="mismatch",
                )
            kept = full
            if any(len(found) > self.max_length for found in full):
                cut = self._tokenized(part, truncation=True, max_length=self.max_length)
                kept = cut["input_ids"]
            ids += kept
            n_cut += [len(a) - len(b) for a, b in zip(full, kept, strict=True)]
        return ids, n_cut

    def offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Character span of each token of `tokenize`, as (first, after the last); (0, 0)
        for special tokens.

        Raises
        ------
        LayerwiseError
            If the tokenizer does not provide them.
        """
        self._check_kind(texts)
        if not self.tokenizer.is_fast:
            raise LayerwiseError(
                f"The tokenizer of {self.name!r} ({type(self.tokenizer).__name__}) does not "
                "report the characters of a token, which tags of words need; use a model with a "
                "tokenizer.json, or leave tasks of the kind tags out of its studies.",
                code="unsupported",
            )
        longest: dict[str, Any] = {}
        if self.max_length < UNLIMITED:
            longest = {"truncation": True, "max_length": self.max_length}
        found = self._tokenized(texts, return_offsets_mapping=True, **longest)
        return [list(map(tuple, offsets)) for offsets in found["offset_mapping"]]

    def _tokenized(self, texts: list[str], **options: Any) -> Any:
        return self.tokenizer(
            texts,
            add_special_tokens=self.special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            **options,
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
    quiet()
    location = locate(model.source, revision)
    claim = devices.pick(device, spread=model.device_map is not None)
    log.info("loading %s at %s from %s", name, revision, location.name)
    who = f"Model {name!r} at {revision!r}"
    network, reader, missing = _from_files(who, model, location, dtype)
    for adapter in model.adapters:
        adapters.merge(network, adapter)
    encoder_alone = bool(network.config.is_encoder_decoder)
    network = body(network)
    _check_whole(who, missing, dissect(network), encoder_alone=encoder_alone)
    settle(network)
    if model.bidirectional:
        adapters.attend_both_ways(network)
    network.eval().requires_grad_(False)
    sha256 = weights_hash(network)
    if model.device_map is None:
        network.to(claim.device)
    return prepare(
        name, network, reader, model, revision=revision, dtype=dtype, weights=sha256, claim=claim
    )


def body(network: Any) -> Any:
    """The part of a model that is read: the encoder of an encoder-decoder, the image tower of a
    model of images and texts."""
    return tower(network.get_encoder() if network.config.is_encoder_decoder else network)


def prepare(
    name: str,
    network: Any,
    reader: Any,
    model: Model,
    *,
    revision: str,
    dtype: str,
    weights: str,
    claim: devices.Claim,
) -> LoadedModel:
    """Prepare a network on its device for reading, with a short pass.

    Parameters
    ----------
    reader
        Its tokenizer or image processor. A tokenizer without a padding token gets one.
    model : Model
        Entry with the settings of its inputs.
    weights : str
        Hash of the weights.
    """
    anatomy = dissect(network)
    device: torch.device = next(network.parameters()).device
    images = tokenizer = None
    if takes_images(network.config):
        images = Images(f"Model {name!r} at {revision!r}", reader, model, network, DTYPES[dtype])
        anatomy = _with_patches(name, network, anatomy, images, device)
        max_length = images.n_tokens
    else:
        tokenizer = reader
        embeddings = network.get_input_embeddings().weight
        device = embeddings.device
        if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= len(embeddings):
            # Padding never counts and never reaches another token; any id works.
            tokenizer.pad_token_id = tokenizer.eos_token_id or 0
        anatomy, _ = probe(name, network, anatomy, example_texts(network, device), LENGTH)
        max_length = _max_length(network, tokenizer, model.max_length)
    return LoadedModel(
        name=name,
        revision=revision,
        model=network,
        tokenizer=tokenizer,
        anatomy=anatomy,
        device=device,
        dtype=dtype,
        max_length=max_length,
        special_tokens=model.special_tokens,
        weights=weights,
        claim=claim,
        images=images,
    )


def _with_patches(
    name: str, network: Any, anatomy: Anatomy, images: Images, device: torch.device
) -> Anatomy:
    """Add the number of tokens, which only a pass shows, to a vision model's anatomy."""
    example = images.example()
    given = images.named(example, ["example"] * len(example))
    inputs = {name: tensor.to(device) for name, tensor in given.items()}
    anatomy, images.n_tokens = probe(name, network, anatomy, inputs, None)
    if images.start_token is not None:
        return replace(anatomy, prefix=1)
    prefix = images.n_tokens - images.n_shown(example)
    return replace(anatomy, prefix=prefix, has_class=prefix > 0)


def _from_files(
    who: str, model: Model, location: Location, dtype: str
) -> tuple[Any, Any, dict[str, Any]]:
    """Read a model, its tokenizer or image processor, and transformers' loading info."""
    from transformers import AutoConfig, AutoModel

    common = {"trust_remote_code": model.trust_remote_code, **location.options()}
    placed = {} if model.device_map is None else {"device_map": model.device_map}
    try:
        config = AutoConfig.from_pretrained(location.name, **common)
        reader = reader_of(location.name, config, model.preprocess, **common)
        # Shapes that do not fit are reported by `_check_whole`.
        network, info = AutoModel.from_pretrained(
            location.name,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **placed,
            **common,
        )
    except (KeyboardInterrupt, SystemExit, LayerwiseError):
        raise
    # Tokenizers are written in Rust, whose panics are not an Exception.
    except BaseException as error:
        raise LayerwiseError(f"{who}: {why(error, location)}", code="unreadable") from error
    of_images = takes_images(config)
    # If the files are missing, transformers makes up a tokenizer of a few special tokens.
    if not of_images and len(set(reader.get_vocab()) - set(reader.all_special_tokens)) < 2:
        raise LayerwiseError(f"{who}: {location.name} {NO_TOKENIZER}", code="missing_file")
    _check_entry(who, model, of_images=of_images)
    return network, reader, info


def _check_whole(who: str, found: Any, anatomy: Anatomy, *, encoder_alone: bool) -> None:
    """Refuse weights that do not fit their config, by transformers' loading info.

    transformers fills missing weights with random numbers and ignores others, with a warning at
    most.
    """
    # Checkpoints of encoders lack the decoder. Poolers are not read, and BERT's language models
    # lack them.
    unread = ("decoder.",) if encoder_alone else ()
    # Unexpected weights may be of a head, or buffers of an older transformers.
    block = re.compile(rf"(?:^|\.){re.escape(anatomy.path)}\.(\d+)\.")
    blocks = {name: block.search(name) for name in found["unexpected_keys"] or ()}
    unfit = {
        "have another shape of": [name for name, *_ in found["mismatched_keys"] or ()],
        "lack": [
            name
            for name in found["missing_keys"] or ()
            if "pooler" not in name and not name.startswith(unread)
        ],
        "have more blocks:": [
            name for name, at in blocks.items() if at and int(at[1]) >= len(anatomy.blocks)
        ],
    }
    for problem, names in unfit.items():
        if names:
            raise LayerwiseError(
                f"{who}: by its config.json, its weights {problem} {min(names)}; fetch or copy "
                "both again, or correct config.json.",
                code="mismatch",
            )


def _check_entry(who: str, model: Model, *, of_images: bool) -> None:
    """Refuse settings of vision models for text models, and the reverse."""
    apart = {"prompts": None} if of_images else {"preprocess": None, "mask_ratio": 0.0}
    takes = "images" if of_images else "texts"
    for key, default in apart.items():
        if getattr(model, key) != default:
            raise LayerwiseError(
                f"{who}: the model takes {takes}; leave out {key}.", code="conflict"
            )


def _max_length(model: nn.Module, tokenizer: Any, asked: int | None) -> int:
    """Longest prompt in tokens: the smallest of all limits."""
    config: Any = model.config
    offset = 2 if config.model_type in POSITIONS_FROM_PADS else 0
    positions = [getattr(config, name, None) for name in LONGEST]
    limits = [n - offset for n in positions if isinstance(n, int) and n > 0]
    return int(min(*limits, tokenizer.model_max_length, UNLIMITED, asked or UNLIMITED))


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
