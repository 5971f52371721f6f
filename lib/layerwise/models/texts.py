"""Inputs of language models: token ids, lengths, batches."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from itertools import cycle, islice
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import MODEL_MAPPING

from layerwise.config.models import Model
from layerwise.corpora.prompts import media
from layerwise.corpora.sources import SURROGATE
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import LONGEST, Anatomy, selects_from, thresholds, unsupported
from layerwise.models.source import NO_TOKENIZER


class ProbeInputs(NamedTuple):
    """Inputs for a few prompts of one length, for the first of them with a longer one, and for it
    alone. The latter are None where all prompts have one length."""

    equal: dict[str, Tensor]
    padded: dict[str, Tensor] | None = None
    alone: dict[str, Tensor] | None = None


class Reader(ABC):
    """Converts prompts to a model's inputs.

    Parameters
    ----------
    who : str
        The model and revision, for errors.
    processor
        Its tokenizer, image processor or feature extractor.
    entry : Model
        The model's config entry.
    network : Module

    Attributes
    ----------
    takes : str
        What the prompts are: ``text``, or the `kind` of a medium.
    processor_name : str
        Word of transformers for the processor.
    unused : tuple of str
        Keys of an entry that have no meaning for such a model.
    time_axis : int
        Axis of tokens in the model's inputs.
    device : torch.device
        Device of the model's inputs.
    max_length : int
        The longest prompt in tokens.
    lacks : frozenset of str
        What metrics may need and the reader cannot give.
    """

    lacks: ClassVar[frozenset[str]] = frozenset()
    takes: ClassVar[str]
    processor_name: ClassVar[str]
    unused: ClassVar[tuple[str, ...]]
    time_axis: int
    device: torch.device
    max_length: int

    @abstractmethod
    def __init__(self, who: str, processor: Any, entry: Model, network: Any) -> None: ...

    @staticmethod
    @abstractmethod
    def open_processor(name: str, preprocess: Any, **options: Any) -> Any:
        """The processor of a folder or hub name; `preprocess` is that of the model's entry."""

    @staticmethod
    def body(network: Any) -> Any:
        """The part of a model that is read."""
        return network

    @abstractmethod
    def prompts(self, prompts: Sequence[Any]) -> tuple[Sequence[Any], list[int]]:
        """Prompts as sequences of tokens, and the number of tokens cut off each."""

    @abstractmethod
    def inputs(self, prompts: Sequence[Any]) -> dict[str, Tensor]:
        """The model's inputs for a batch of what `prompts` gives."""

    @abstractmethod
    def example(self) -> dict[str, Tensor]:
        """Inputs for a few prompts of one length."""

    @abstractmethod
    def probe_inputs(self) -> Iterator[ProbeInputs]:
        """Inputs that prove the layers."""

    @abstractmethod
    def fit(self, anatomy: Anatomy, n_tokens: int) -> Anatomy:
        """The anatomy with what the reader knows of tokens, of the example's `n_tokens`."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Settings of the inputs, for the file's record."""


@dataclass
class LazyPrompt:
    """A prompt that is read when needed: a sequence of the model's tokens.

    Attributes
    ----------
    read : callable
        Decodes and preprocesses the prompt.
    pool : ThreadPoolExecutor
        See `reading_pool`.
    n_tokens : int
    cost : int
        Number of tokens that the model computes for it.
    extent : int
        Length of the model's input for it, where equal numbers of tokens can have several.
    """

    read: Callable[[], Tensor]
    pool: ThreadPoolExecutor
    n_tokens: int
    cost: int
    extent: int = 0

    def __len__(self) -> int:
        return self.n_tokens

    @cached_property
    def reading(self) -> Future[Tensor]:
        """The model's input, read in a thread from the first use on."""
        return self.pool.submit(self.read)

    def begin(self) -> None:
        """Begin to read."""
        self.reading  # noqa: B018

    def take(self) -> Tensor:
        """The model's input. A second call reads it again."""
        tensor = self.reading.result()
        del self.reading
        return tensor


def reading_pool() -> ThreadPoolExecutor:
    """Threads that decode and preprocess prompts."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), "reading")


def input_name(config: Any) -> str:
    """Name of a model's main input, such as ``input_ids``; empty if it is not known."""
    return str(getattr(MODEL_MAPPING.get(type(config), None), "main_input_name", ""))


def reader_of(config: Any) -> type[Reader]:
    """The reader of a model with this configuration: of a medium, or else of texts."""
    return next(filter(None, (medium.reader_of(config) for medium in media())), Texts)


# A tokenizer's output takes hundreds of bytes per token, the ids only a few.
TEXTS_AT_ONCE = 256

UNLIMITED = 10**9

# Share of unknown tokens from which we warn, and number of texts that cannot all be the same.
MANY_UNKNOWN, MANY_TEXTS = 0.1, 20
# Texts of each call that are looked at for these warnings.
CHECKED_TEXTS = 1000

log = logging.getLogger(__name__)

# Models that read padding up to their longest text, as in training.
PADDED = ("siglip_text_model", "siglip2_text_model")

# Tokens of two examples, and of a longer one. Batch and length differ, which shows whether a model
# swaps them.
LENGTH, LONGER = 5, 9

# Tokens of the longest texts that layers are proved with. Longer ones share a batch only with
# texts of their length where a config has thresholds beyond.
PROVED = 1100


class Texts(Reader):
    """Converts texts to a model's inputs.

    Parameters
    ----------
    who : str
        The model and revision, for errors.
    tokenizer : of transformers, or Transformer module of sentence-transformers
        One without a padding token gets one. A module reads texts as `encode` does.
    entry : Model
        The model's config entry.
    network : Module

    Attributes
    ----------
    max_length : int
        The longest prompt in tokens, special tokens included.
    is_padded : bool
        True if a text is padded to `max_length`, and its tokens see the padding.
    is_chat : bool
        True if each text is written into a chat template.
    thresholds : tuple of int
        See `layerwise.models.architectures.thresholds`.
    selects_from : float
        See `layerwise.models.architectures.selects_from`.
    n_embeddings : int
        Number of token embeddings.

    Raises
    ------
    LayerwiseError
        If the tokenizer has no vocabulary, or the model no table of token embeddings.
    """

    takes = "text"
    processor_name = "tokenizer"
    unused = ("preprocess",)
    time_axis = 1

    def __init__(self, who: str, tokenizer: Any, entry: Model, network: Any) -> None:
        self.module: Any = None if hasattr(tokenizer, "get_vocab") else tokenizer
        tokenizer = tokenizer if self.module is None else self.module.tokenizer
        # If the files are missing, transformers makes up a tokenizer of a few special tokens.
        if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:
            raise LayerwiseError(f"{who}: {NO_TOKENIZER}", code="missing_file")
        self.who, self.tokenizer, self.special_tokens = who, tokenizer, entry.special_tokens
        self._warned: set[str] = set()
        try:
            embeddings: Tensor = network.get_input_embeddings().weight
        except (AttributeError, NotImplementedError) as error:
            raise unsupported(
                f"{who}: {type(network).__name__} has no table of token embeddings"
            ) from error
        self.n_embeddings, self.device = len(embeddings), embeddings.device
        if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= self.n_embeddings:
            # Padding never counts and never reaches another token; any id with an embedding works.
            end = tokenizer.eos_token_id or 0
            tokenizer.pad_token_id = end if end < self.n_embeddings else 0
        positions = [getattr(network.config, name, None) for name in LONGEST]
        offset = _first_position(network)
        limits = [n - offset for n in positions if isinstance(n, int) and n > 0]
        limits += [UNLIMITED, entry.max_length or UNLIMITED]
        self.is_chat = self.module is not None and "message" in self.module.modality_config
        if self.module is None or not entry.max_length:
            options = getattr(self.module, "processing_kwargs", {})
            buckets = (options.get(name, {}) for name in ("chat_template", "common", "text"))
            own = (bucket.get("max_length") for bucket in buckets)
            limits.append(next(filter(None, own), tokenizer.model_max_length or UNLIMITED))
        if self.is_chat and not self.special_tokens:
            raise LayerwiseError(
                f"{who}: special_tokens: its chat template writes them; leave out special_tokens.",
                code="conflict",
            )
        self.max_length = int(min(limits))
        self.is_padded = network.config.model_type in PADDED
        self.thresholds = thresholds(network.config, self.max_length)
        self.selects_from = selects_from(network.config)
        sample = tokenizer("a", add_special_tokens=self.special_tokens)
        takes_types = "token_type_ids" in signature(network.forward).parameters
        types = sample.get("token_type_ids", []) if takes_types else []
        # Of XLNet's last token, for example.
        self.token_types = (
            dict(zip(sample["input_ids"], types, strict=False)) if any(types) else {}
        )

    @staticmethod
    def open_processor(name: str, preprocess: Any, **options: Any) -> Any:  # noqa: ARG004
        """The tokenizer of a folder or hub name."""
        from transformers import AutoTokenizer
        from transformers.models.auto.tokenization_auto import get_tokenizer_config

        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        asked = get_tokenizer_config(name, **options).get("add_eos_token")
        if asked and tokenizer("a")["input_ids"][-1:] != [tokenizer.eos_token_id]:
            log.warning(
                "%s: its tokenizer_config.json asks for an end-of-text token after each text "
                "(add_eos_token), but this version of transformers adds none.",
                name,
            )
        return tokenizer

    @property
    def stand_in(self) -> int:
        """The token of an empty text: the end of text, or else the padding."""
        end, padding = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        return int(padding if end is None or end >= self.n_embeddings else end)

    def prompts(self, texts: Sequence[str]) -> tuple[list[list[int]], list[int]]:
        """Token ids of each text, cut at `max_length`, and the number of tokens cut off each.

        Raises
        ------
        LayerwiseError
            If a token has no embedding.
        """
        ids: list[list[int]] = []
        n_cut: list[int] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = list(texts[start : start + TEXTS_AT_ONCE])
            rows = full = self._tokenized(some)["input_ids"]
            largest = max((max(row, default=0) for row in full), default=0)
            if largest >= self.n_embeddings:
                raise LayerwiseError(
                    f"{self.who}: its tokenizer gives token {largest}, but it has embeddings of "
                    f"tokens 0 to {self.n_embeddings - 1} alone; put the tokenizer of this model "
                    "into its folder.",
                    code="mismatch",
                )
            if any(len(row) > self.max_length for row in full):
                rows = self._tokenized(some, truncation=True)["input_ids"]
            ids += rows
            n_cut += [len(a) - len(b) for a, b in zip(full, rows, strict=True)]
        self._check_reading(texts[:CHECKED_TEXTS], ids[:CHECKED_TEXTS])
        return ids, n_cut

    def _check_reading(self, texts: Sequence[str], ids: list[list[int]]) -> None:
        """Warn once of unknown tokens and of a first token that comes twice.

        Raises
        ------
        LayerwiseError
            If many different texts are the same tokens, so that no layer can tell them apart.
        """
        unknown, first = self.tokenizer.unk_token_id, self.tokenizer.bos_token_id
        tokens = Counter(token for row in ids for token in row)
        n_unknown = tokens[unknown] if unknown is not None else 0
        n_different, n_read = len(set(map(str, texts))), len({tuple(row) for row in ids})
        if n_unknown and n_read == 1 and n_different >= MANY_TEXTS:
            raise LayerwiseError(
                f"{self.who}: its tokenizer reads {n_different} different texts as the same "
                "unknown tokens; put blanks between the symbols, or take the tokenizer that the "
                "model was trained with.",
                code="unsupported",
            )
        share = n_unknown / max(tokens.total(), 1)
        if share > MANY_UNKNOWN and "unknown" not in self._warned:
            self._warned.add("unknown")
            text = (
                "%s: %.0f%% of the tokens are unknown to its tokenizer; %d texts are read as %d."
            )
            log.warning(text, self.who, 100 * share, n_different, n_read)
        twice = sum(len(row) > 1 and row[0] == row[1] == first for row in ids)
        if twice > len(ids) / 2 and "twice" not in self._warned:
            self._warned.add("twice")
            text = (
                "%s: %d of %d texts begin with %s twice; set special_tokens: false in its entry."
            )
            log.warning(text, self.who, twice, len(ids), self.tokenizer.bos_token)

    def behind(self, prompt: str, text: str) -> Any:
        """A text with a prompt in front; in a chat template the prompt is a system message."""
        if not self.is_chat:
            return prompt + text
        form = self.module.input_formatter
        messages = form.batch_to_message("text", {"text": [SURROGATE.sub("\ufffd", text)]})[1]
        chats = messages["message"]
        return (form.prepend_prompt_to_messages(chats, prompt) if prompt else chats)[0]

    def refuse_chat(self, what: str) -> None:
        """Refuse what needs to know where a text stands in its chat template.

        Raises
        ------
        LayerwiseError
        """
        if self.is_chat:
            raise LayerwiseError(
                f"{self.who}: {what}: each text is written into the model's chat template, where "
                f"its tokens are not told from the template's; leave out {what}.",
                code="unsupported",
            )

    def offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Character span of each token of `prompts`, as (first, after the last); (0, 0) for
        special tokens."""
        self.refuse_chat("words or parts of texts")
        encoded = self._tokenized(texts, truncation=True, return_offsets_mapping=True)
        return [list(map(tuple, offsets)) for offsets in encoded["offset_mapping"]]

    def _tokenized(self, texts: list[Any], *, truncation: bool = False, **options: Any) -> Any:
        options |= {"return_attention_mask": False, "return_token_type_ids": False}
        size: dict[str, Any] = {"truncation": truncation, "padding": False}
        size["max_length"] = self.max_length if truncation else None
        if not self.special_tokens or self.module is None:
            options["add_special_tokens"] = self.special_tokens
        if self.is_chat:
            texts = [self.behind("", text) if isinstance(text, str) else text for text in texts]
        else:  # surrogates have no UTF-8
            texts = [SURROGATE.sub("\ufffd", text) for text in texts]
        if self.module is None:
            return self.tokenizer(texts, **size, **options)
        # Its own settings stay where they are not about the length, the batch or the output.
        asked: dict[str, Any] = {
            "text": options | size,
            "common": {"return_tensors": None, **size},
        }
        if self.is_chat:
            asked["chat_template"] = size
        return self.module.preprocess(texts, processing_kwargs=asked)

    def inputs(self, prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """The model's inputs for a batch."""
        rows = [torch.tensor(prompt) for prompt in prompts]
        padding = self.tokenizer.pad_token_id
        if self.is_padded:
            rows = [pad(row, (0, self.max_length - len(row)), value=padding) for row in rows]
        inputs = padded("input_ids", rows, padding)
        if self.token_types:
            types = [torch.tensor([self.token_types.get(i, 0) for i in p]) for p in prompts]
            inputs["token_type_ids"] = pad_sequence(types, True)
        return inputs

    def probe_inputs(self) -> Iterator[ProbeInputs]:
        """Inputs that prove the layers: of a few tokens, and beyond the largest threshold that a
        short pass can reach."""
        special = set(self.tokenizer.all_special_ids)
        usual = [i for i in range(self.n_embeddings) if i not in special] or [0]
        within = [n for n in self.thresholds if n + LONGER <= min(self.max_length, PROVED)]
        for start in (0, *within[-1:]):
            tokens = list(islice(cycle(usual), 1 + 2 * start + LENGTH + LONGER))
            first, further = tokens[1 : start + LENGTH + 1], tokens[start + LENGTH + 1 :]
            yield ProbeInputs(
                # Two prompts that differ only in their first token, and a longer one.
                self.inputs([first, tokens[:1] + first[1:]]),
                self.inputs([first, further[: self.max_length]]),
                self.inputs([first]),
            )

    def example(self) -> dict[str, Tensor]:
        """Inputs for two prompts of five tokens."""
        return next(self.probe_inputs()).equal

    def fit(self, anatomy: Anatomy, _: int) -> Anatomy:
        """The anatomy with the thresholds that batches do not cross, and how far it is proved."""
        beyond = [n for n in self.thresholds if n + LONGER > PROVED]
        proved = min(*beyond, UNLIMITED, self.selects_from)
        return replace(anatomy, thresholds=self.thresholds, proved=proved)

    def facts(self) -> dict[str, Any]:
        """Settings of the inputs, for the file's record."""
        return {"special_tokens": self.special_tokens, "max_length": self.max_length}


def padded(name: str, rows: list[Tensor], value: float) -> dict[str, Tensor]:
    """Rows as the input `name` of a batch, with a mask if they are of several lengths.

    Pads are on the right, so that no token of a decoder or a recurrent model sees them.
    """
    lengths = torch.tensor([len(row) for row in rows])
    batch = pad_sequence(rows, True, value)
    mask = torch.arange(batch.shape[1]) < lengths[:, None]
    # Without padding no mask is needed, and attention takes its fastest path.
    return {name: batch} | ({} if bool(mask.all()) else {"attention_mask": mask.long()})


def _first_position(network: Any) -> int:
    """The position of the first token: RoBERTa and its like count from the id of the padding."""
    tables = (m for name, m in network.named_modules() if name.endswith("position_embeddings"))
    pads = (getattr(table, "padding_idx", None) for table in tables)
    return next((pad + 1 for pad in pads if pad is not None), 0)
