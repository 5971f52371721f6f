"""Load a model with its tokenizer, ready for hooks."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layerwise.config.models import Model
from layerwise.errors import LayerwiseError
from layerwise.models import adapters, devices, weights
from layerwise.models.architectures import LONGEST, POSITIONS_FROM_PADS, Anatomy, dissect, settle
from layerwise.models.failures import of_left_over, of_misfits, of_missing, of_no_tokenizer, why
from layerwise.models.probe import probe
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
    """A model at one revision on one device.

    Attributes
    ----------
    max_length : int
        The longest prompt in tokens, special tokens included.
    weights : str
        SHA-256 over the names, shapes, types and bytes of all parameters and buffers, adapters
        merged.
    claim : Claim
        Makes the device this job's own while this object lives.
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

    def tokenize(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """Token ids of each text, cut at `max_length`, and how many tokens were cut off each.

        Raises
        ------
        LayerwiseError
            If the tokenizer gives a token that the model has no embedding for.
        """
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
        try:
            ids: list[list[int]] = self.tokenizer(
                texts, add_special_tokens=self.special_tokens, return_attention_mask=False,
                return_token_type_ids=False, **options,
            )["input_ids"]  # fmt: skip
        except BaseException as error:
            # Tokenizers are Rust, whose panics are no Exception and have no type to be named by.
            if type(error).__name__ != "PanicException":
                raise
            raise LayerwiseError(
                f"The tokenizer of {self.name!r} at {self.revision!r} broke down on a text "
                f"({' '.join(str(error).split())[:200]}); fetch or copy its files again."
            ) from error
        return ids


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
    tokenizer, network, anatomy = _from_files(who, model, location, dtype)
    settle(network)
    for adapter in model.adapters:
        adapters.merge(network, adapter)
    if model.bidirectional:
        adapters.attend_both_ways(network)
    network.eval().requires_grad_(False)
    sha256 = weights.weights_hash(network)
    if model.device_map is None:
        network.to(claim.device)
    embeddings = network.get_input_embeddings().weight
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= len(embeddings):
        # Pads never count and never reach another token; any id will do.
        tokenizer.pad_token_id = tokenizer.eos_token_id or 0
    return LoadedModel(
        name=name,
        revision=revision,
        model=network,
        tokenizer=tokenizer,
        anatomy=probe(name, network, anatomy, embeddings.device),
        device=embeddings.device,
        dtype=dtype,
        max_length=_max_length(network, tokenizer, model.max_length),
        special_tokens=model.special_tokens,
        weights=sha256,
        claim=claim,
    )


def _from_files(
    who: str, model: Model, location: Location, dtype: str
) -> tuple[Any, Any, Anatomy]:
    """The tokenizer, the network (of encoder-decoders the encoder) with all its weights, and where
    its parts are."""
    from transformers import AutoModel, AutoTokenizer

    common = {"trust_remote_code": model.trust_remote_code, **_where(location)}
    placed = {} if model.device_map is None else {"device_map": model.device_map}
    try:
        tokenizer = AutoTokenizer.from_pretrained(location.name, **common)
        known = _knows_text(tokenizer)
        # Shapes that don't fit are told by us, with their names.
        network, found = AutoModel.from_pretrained(
            location.name, dtype=DTYPES[dtype], use_safetensors=True,
            ignore_mismatched_sizes=True, output_loading_info=True, **placed, **common,
        )  # fmt: skip
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # Tokenizers are Rust, whose panics are no Exception.
        raise LayerwiseError(f"{who}: {why(error, location)}") from error
    if not known:
        raise LayerwiseError(f"{who}: {of_no_tokenizer(location)}")
    encoder_alone = bool(network.config.is_encoder_decoder)
    misfits = weights.misfits(found)
    if misfits:
        raise LayerwiseError(f"{who}: {of_misfits(misfits)}")
    missing = weights.missing(found, encoder_alone=encoder_alone)
    if missing:
        raise LayerwiseError(f"{who}: {of_missing(missing)}")
    if encoder_alone:
        network = network.get_encoder()
    anatomy = dissect(network)
    left_over = weights.beyond(found, anatomy.path, len(anatomy.blocks))
    if left_over:
        raise LayerwiseError(f"{who}: {of_left_over(left_over, len(anatomy.blocks))}")
    return tokenizer, network, anatomy


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
