"""Load a model with its tokenizer, ready for hooks."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from layerwise.config.models import Model
from layerwise.corpora.images import Picture
from layerwise.errors import LayerwiseError
from layerwise.models import adapters, devices, weights
from layerwise.models.architectures import LONGEST, POSITIONS_FROM_PADS, Anatomy, dissect, settle
from layerwise.models.failures import of_left_over, of_misfits, of_missing, of_no_tokenizer, why
from layerwise.models.images import Images, Pixels, processor_of, takes_images, tower
from layerwise.models.probe import LENGTH, causal, example_texts, probe
from layerwise.models.quiet import quiet
from layerwise.models.source import Location, locate

log = logging.getLogger(__name__)

# What a tokenizer says of a text takes some hundred bytes a token until its ids are taken out.
TEXTS_AT_ONCE = 256

# Words and letters, among them those of DNA and proteins.
PANGRAM = "the quick brown fox jumps over 13 lazy dogs ACGT MKVL"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model at one revision on one device, and how it takes what it reads.

    Attributes
    ----------
    tokenizer
        None of a model that takes images.
    max_length : int
        The longest prompt in tokens, special tokens included.
    weights : str
        SHA-256 over the names, shapes, types and bytes of all parameters and buffers, adapters
        merged.
    claim : Claim
        Makes the device this job's own while this object lives.
    images : Images, optional
        How it takes images; None for a model that takes texts.
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
        """The prompts that each part of a corpus becomes, and how many tokens were cut off each.

        Parameters
        ----------
        parts : iterable of sequences
            Of texts, which become token ids while the part before is being worked on; or of
            images (`layerwise.corpora.images.Picture`), which are read when they are needed.

        Raises
        ------
        LayerwiseError
            If images came and the model takes texts, or the other way around; else as `tokenize`.
        """
        if self.images is None:
            for ids, n_cut in self.tokenize_ahead(parts):
                yield list(ids), n_cut
            return
        for part in parts:
            self._check_kind(part)
            yield [Pixels(picture, self.images) for picture in part], [0] * len(part)

    @property
    def stand_in(self) -> int:
        """The token that is read of a text that has none: the end of a text, or else the pad."""
        end = self.tokenizer.eos_token_id
        return int(self.tokenizer.pad_token_id if end is None else end)

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Begin to read the prompts of a batch to come, where that takes time."""
        for prompt in prompts:
            if isinstance(prompt, Pixels):
                prompt.start()

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """What the model is given of a batch, on its device. Of texts, pads stand on the right,
        where no token of a decoder or a recurrent model sees them."""
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
                # Without pads no mask is needed, which lets attention take its fastest path.
                given["attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        return {name: tensor.to(self.device) for name, tensor in given.items()}

    def is_causal(self) -> bool:
        """Whether no token's states depend on the tokens after it, as two short prompts show."""
        if self.images is None:
            known = len(self.model.get_input_embeddings().weight)  # type: ignore[operator]
            tokens = torch.arange(1, 1 + 2 * LENGTH, device=self.device)[None] % known
            other = torch.cat([tokens[:, :LENGTH], tokens[:, LENGTH:].flip(1)], dim=1)
            pair = [{"input_ids": tokens}, {"input_ids": other}]
        else:
            pair = [
                {name: tensor.to(self.device) for name, tensor in given.items()}
                for given in self.images.halves()
            ]
        return causal(self.model, self.anatomy, *pair)

    def check_tokens(self, choices: Iterable[str]) -> None:
        """Make sure that the model has the tokens that are to count.

        Raises
        ------
        LayerwiseError
            If patches are asked of a model of texts, or a class token of one without.
        """
        has = {"patches": self.anatomy.prefix is not None, "class": self.anatomy.has_class}
        for name in choices:
            if not has.get(name, True):
                what = "images" if self.images else "texts"
                raise LayerwiseError(
                    f"tokens: {name!r} came, but {self.name} (architecture "
                    f"{self.anatomy.kind!r}) takes {what} and has no such tokens; give the model "
                    "others in its entry (tokens: [all])."
                )

    def _check_kind(self, part: Sequence[Any]) -> None:
        wanted = str if self.images is None else Picture
        if part and not isinstance(part[0], wanted):
            takes, came = ("texts", "images") if wanted is str else ("images", "texts")
            raise LayerwiseError(
                f"{self.name} takes {takes}, and {came} came; name its corpora and tasks in the "
                "studies."
            )

    def tokenize(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """Token ids of each text, cut at `max_length`, and how many tokens were cut off each.

        Raises
        ------
        LayerwiseError
            If the tokenizer gives a token that the model has no embedding for, or the model takes
            images.
        """
        self._check_kind(texts)
        known = len(self.model.get_input_embeddings().weight)  # type: ignore[operator]
        ids: list[list[int]] = []
        n_cut: list[int] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            part = texts[start : start + TEXTS_AT_ONCE]
            full = self._token_ids(part)
            largest = max((max(found, default=0) for found in full), default=0)
            if largest >= known:
                raise LayerwiseError(
                    f"The tokenizer of {self.name!r} at {self.revision!r} gives token {largest}, "
                    f"but the model has embeddings of tokens 0 to {known - 1} alone; this is "
                    "another model's tokenizer: put the right one into the folder."
                )
            kept = full
            if any(len(found) > self.max_length for found in full):
                kept = self._token_ids(part, truncation=True, max_length=self.max_length)
            ids += kept
            n_cut += [len(a) - len(b) for a, b in zip(full, kept, strict=True)]
        return ids, n_cut

    def offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """The characters that each token of `tokenize` stands for, as (first, behind the last);
        (0, 0) for special tokens.

        Raises
        ------
        LayerwiseError
            If the tokenizer does not know, or as `tokenize`.
        """
        self._check_kind(texts)
        if not self.tokenizer.is_fast:
            raise LayerwiseError(
                f"The tokenizer of {self.name!r} ({type(self.tokenizer).__name__}) does not say "
                "which characters a token stands for, so that words cannot be told apart; take a "
                "model with a tokenizer.json, or leave tasks of the kind tags out of its studies."
            )
        longest: dict[str, Any] = {}
        if self.max_length < 10**9:
            longest = {"truncation": True, "max_length": self.max_length}
        found = self._tokenized(texts, return_offsets_mapping=True, **longest)
        return [list(map(tuple, offsets)) for offsets in found["offset_mapping"]]

    def tokenize_ahead(
        self, parts: Iterable[Sequence[str]]
    ) -> Iterator[tuple[list[list[int]], list[int]]]:
        """What `tokenize` gives of each part, made while the part before is being worked on."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        try:
            upcoming = None
            for part in parts:
                ready, upcoming = upcoming, pool.submit(self.tokenize, list(part))
                if ready is not None:
                    yield ready.result()
            if upcoming is not None:
                yield upcoming.result()
        finally:
            # No waiting: after a failure the garbage collector ends this, in a thread that another
            # one may be waiting for.
            pool.shutdown(wait=False)

    def _token_ids(self, texts: list[str], **options: Any) -> list[list[int]]:
        ids: list[list[int]] = self._tokenized(texts, **options)["input_ids"]
        return ids

    def _tokenized(self, texts: list[str], **options: Any) -> Any:
        try:
            return self.tokenizer(
                texts, add_special_tokens=self.special_tokens, return_attention_mask=False,
                return_token_type_ids=False, **options,
            )  # fmt: skip
        except BaseException as error:
            # Tokenizers are Rust, whose panics are no Exception and have no type to be named by.
            if type(error).__name__ != "PanicException":
                raise
            raise LayerwiseError(
                f"The tokenizer of {self.name!r} at {self.revision!r} broke down on a text "
                f"({' '.join(str(error).split())[:200]}); fetch or copy its files again."
            ) from error


Prompt = Pixels | Sequence[int]
"""What a prompt is to a model: an image, or token ids."""


def load(
    name: str, model: Model, revision: str, *, device: str = "auto", dtype: str = "float32"
) -> LoadedModel:
    """Load a model of the config.

    Parameters
    ----------
    name : str
        What files and messages call it.
    model : Model
        Its entry in the config. `dtype` is the caller's to take from it: ``model.over(settings)``
        gives a section's settings with the model's own in place of them.
    revision : str
        One of its checkpoints.
    device : str
        As `layerwise.models.devices.pick` takes it.
    dtype : {'float32', 'bfloat16', 'float16'}

    Raises
    ------
    LayerwiseError
        If it cannot be had, its weights and its config do not agree, or it is no model whose
        layers can be read; the message says why.
    """
    quiet()
    location = locate(model.source, revision)
    claim = devices.pick(device, spread=model.device_map is not None)
    log.info("loading %s at %s from %s", name, revision, location.name)
    who = f"Model {name!r} at {revision!r}"
    reader, network, anatomy = _from_files(who, model, location, dtype)
    settle(network)
    for adapter in model.adapters:
        adapters.merge(network, adapter)
    if model.bidirectional:
        adapters.attend_both_ways(network)
    network.eval().requires_grad_(False)
    sha256 = weights.weights_hash(network)
    if model.device_map is None:
        network.to(claim.device)
    return prepare(
        name, network, reader, anatomy, model,
        revision=revision, dtype=dtype, weights=sha256, claim=claim,
    )  # fmt: skip


def prepare(
    name: str,
    network: Any,
    reader: Any,
    anatomy: Anatomy,
    model: Model,
    *,
    revision: str,
    dtype: str,
    weights: str,
    claim: devices.Claim,
) -> LoadedModel:
    """Make a network on its device ready to be read, with a short pass through it.

    Parameters
    ----------
    reader
        Its tokenizer or image processor. A tokenizer without a pad token is given one.
    model : Model
        Entry that says how its inputs are made.
    weights : str
        Hash of the weights.
    """
    where: torch.device = next(network.parameters()).device
    images = tokenizer = None
    if takes_images(network.config):
        who = f"Model {name!r} at {revision!r}"
        images = Images(who, reader, model, network, DTYPES[dtype])
        anatomy, max_length = _with_patches(name, network, anatomy, images, where)
    else:
        tokenizer = reader
        embeddings = network.get_input_embeddings().weight
        where = embeddings.device
        if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= len(embeddings):
            # Pads never count and never reach another token; any id will do.
            tokenizer.pad_token_id = tokenizer.eos_token_id or 0
        anatomy, _ = probe(name, network, anatomy, example_texts(network, where), LENGTH)
        max_length = _max_length(network, tokenizer, model.max_length)
    return LoadedModel(
        name=name,
        revision=revision,
        model=network,
        tokenizer=tokenizer,
        anatomy=anatomy,
        device=where,
        dtype=dtype,
        max_length=max_length,
        special_tokens=model.special_tokens,
        weights=weights,
        claim=claim,
        images=images,
    )


def _with_patches(
    name: str, network: Any, anatomy: Anatomy, images: Images, device: torch.device
) -> tuple[Anatomy, int]:
    """A vision model's anatomy after a pass, and how many tokens it makes of an image."""
    example = images.example()
    given = images.named(example, ["example"] * len(example))
    inputs = {name: tensor.to(device) for name, tensor in given.items()}
    anatomy, images.n_tokens = probe(name, network, anatomy, inputs, None)
    prefix = images.n_tokens - images.n_shown(example)
    if images.start_token is not None:
        prefix = 1
    has_class = prefix > 0 and images.start_token is None
    return replace(anatomy, prefix=prefix, has_class=has_class), images.n_tokens


def _from_files(
    who: str, model: Model, location: Location, dtype: str
) -> tuple[Any, Any, Anatomy]:
    """The tokenizer or image processor, the network (of encoder-decoders the encoder, of models of
    image and text the tower of images) with all its weights, and where its parts are."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    common = {"trust_remote_code": model.trust_remote_code, **_where(location)}
    placed = {} if model.device_map is None else {"device_map": model.device_map}
    try:
        of_images = takes_images(AutoConfig.from_pretrained(location.name, **common))
        if of_images:
            reader, known = processor_of(location, model, common), True
        else:
            reader = AutoTokenizer.from_pretrained(location.name, **common)
            known = _knows_text(reader)
        # Shapes that don't fit are told by us, with their names.
        network, found = AutoModel.from_pretrained(
            location.name, dtype=DTYPES[dtype], use_safetensors=True,
            ignore_mismatched_sizes=True, output_loading_info=True, **placed, **common,
        )  # fmt: skip
    except (KeyboardInterrupt, SystemExit, LayerwiseError):
        raise
    except BaseException as error:  # Tokenizers are Rust, whose panics are no Exception.
        raise LayerwiseError(f"{who}: {why(error, location)}") from error
    if not known:
        raise LayerwiseError(f"{who}: {of_no_tokenizer(location)}")
    _check_entry(who, model, of_images=of_images)
    encoder_alone = bool(network.config.is_encoder_decoder)
    misfits = weights.misfits(found)
    if misfits:
        raise LayerwiseError(f"{who}: {of_misfits(misfits)}")
    missing = weights.missing(found, encoder_alone=encoder_alone)
    if missing:
        raise LayerwiseError(f"{who}: {of_missing(missing)}")
    if encoder_alone:
        network = network.get_encoder()
    if of_images:
        network = tower(network)
    anatomy = dissect(network)
    left_over = weights.beyond(found, anatomy.path, len(anatomy.blocks))
    if left_over:
        raise LayerwiseError(f"{who}: {of_left_over(left_over, len(anatomy.blocks))}")
    return reader, network, anatomy


def _check_entry(who: str, model: Model, *, of_images: bool) -> None:
    """Refuse settings of the other kind of model."""
    apart = {"prompts": None} if of_images else {"preprocess": None, "mask_ratio": 0.0}
    takes = "images" if of_images else "texts"
    for key, at_rest in apart.items():
        if getattr(model, key) != at_rest:
            raise LayerwiseError(f"{who}: {key} came, but the model takes {takes}; leave it out.")


def _knows_text(tokenizer: Any) -> bool:
    """Whether a tokenizer has a vocabulary. Where its files are missing, transformers makes up one
    for which all texts are alike."""
    ids = set(tokenizer(PANGRAM, add_special_tokens=False)["input_ids"])
    return len(ids - {tokenizer.unk_token_id, *tokenizer.all_special_ids}) > 1


def _where(location: Location) -> dict[str, Any]:
    where: dict[str, Any] = {}
    if location.revision is not None:
        where["revision"] = location.revision
    if location.gguf_file is not None:
        where["gguf_file"] = location.gguf_file
    return where


def _max_length(model: nn.Module, tokenizer: Any, asked: int | None) -> int:
    limits = [asked] if asked else []
    config: Any = model.config
    for name in LONGEST:
        positions = getattr(config, name, None)
        if isinstance(positions, int) and positions > 0:
            offset = 2 if config.model_type in POSITIONS_FROM_PADS else 0
            limits.append(positions - offset)
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, int | float) or not longest > 0:
        raise LayerwiseError(
            f"The tokenizer_config.json of {tokenizer.name_or_path} says that model_max_length is "
            f"{json.dumps(longest, default=str)}; accepted is a whole number above 0: correct it, "
            "or fetch or copy the file again."
        )
    if longest < 10**9:
        limits.append(int(longest))
    return min(limits, default=10**9)
