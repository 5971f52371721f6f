"""Inputs of language models: token ids, lengths, batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from layerwise.config.models import Model
from layerwise.corpora.select import SURROGATE
from layerwise.errors import LayerwiseError
from layerwise.models.architectures import LONGEST, Anatomy, unsupported
from layerwise.models.source import NO_TOKENIZER

# A tokenizer's output takes hundreds of bytes per token, the ids only a few.
TEXTS_AT_ONCE = 256

UNLIMITED = 10**9

# Tokens of two examples, and of a longer one. Batch and length differ, which shows whether a model
# swaps them.
LENGTH, LONGER = 5, 9


class Texts:
    """Converts texts to a model's inputs.

    Parameters
    ----------
    who : str
        The model and revision, for errors.
    tokenizer : of transformers
        One without a padding token gets one.
    entry : Model
        The model's config entry.
    network : Module

    Attributes
    ----------
    max_length : int
        The longest prompt in tokens, special tokens included.
    lower_case : bool
        True to read texts in lower case.
    n_embeddings : int
        Number of token embeddings.

    Raises
    ------
    LayerwiseError
        If the tokenizer has no vocabulary, or the model no table of token embeddings.
    """

    takes = "text"
    time_axis = 1
    lower_case = False

    def __init__(self, who: str, tokenizer: Any, entry: Model, network: Any) -> None:
        # If the files are missing, transformers makes up a tokenizer of a few special tokens.
        if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:
            raise LayerwiseError(f"{who}: {NO_TOKENIZER}", code="missing_file")
        self.who, self.tokenizer, self.special_tokens = who, tokenizer, entry.special_tokens
        embeddings = self._embeddings(network)
        self.n_embeddings = len(embeddings)
        self.device: torch.device = embeddings.device
        if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= self.n_embeddings:
            # Padding never counts and never reaches another token; any id works.
            tokenizer.pad_token_id = tokenizer.eos_token_id or 0
        positions = [getattr(network.config, name, None) for name in LONGEST]
        offset = _first_position(network)
        limits = [n - offset for n in positions if isinstance(n, int) and n > 0]
        limits += [tokenizer.model_max_length, UNLIMITED, entry.max_length or UNLIMITED]
        self.max_length = int(min(limits))

    def _embeddings(self, network: Any) -> Tensor:
        try:
            weight: Tensor = network.get_input_embeddings().weight
        except (AttributeError, NotImplementedError) as error:
            raise unsupported(
                f"{self.who}: {type(network).__name__} has no table of token embeddings"
            ) from error
        return weight

    @property
    def stand_in(self) -> int:
        """The token of an empty text: the end of text, or else the padding."""
        end = self.tokenizer.eos_token_id
        return int(self.tokenizer.pad_token_id if end is None else end)

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
        return ids, n_cut

    def offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Character span of each token of `prompts`, as (first, after the last); (0, 0) for
        special tokens."""
        encoded = self._tokenized(texts, truncation=True, return_offsets_mapping=True)
        return [list(map(tuple, offsets)) for offsets in encoded["offset_mapping"]]

    def _tokenized(self, texts: list[str], *, truncation: bool = False, **options: Any) -> Any:
        return self.tokenizer(
            # Surrogates have no UTF-8.
            [SURROGATE.sub("\ufffd", t.lower() if self.lower_case else t) for t in texts],
            add_special_tokens=self.special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            truncation=truncation,
            max_length=self.max_length if truncation else None,
            **options,
        )

    def inputs(self, prompts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """The model's inputs for a batch."""
        rows = [torch.tensor(prompt) for prompt in prompts]
        return padded("input_ids", rows, self.tokenizer.pad_token_id)

    @cached_property
    def _examples(self) -> list[list[int]]:
        """Two prompts that differ only in their first token, and a longer one."""
        special = set(self.tokenizer.all_special_ids)
        usual = [i for i in range(self.n_embeddings) if i not in special] or [0]
        tokens = list(islice(cycle(usual), 1 + LENGTH + LONGER))
        first, other, further = tokens[1 : LENGTH + 1], tokens[:1], tokens[LENGTH + 1 :]
        return [first, other + first[1:], further[: self.max_length]]

    def example(self) -> dict[str, Tensor]:
        """Inputs for two prompts of five tokens, which differ only in their first."""
        return self.inputs(self._examples[:2])

    def neighbours(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs for the first prompt of the example with a longer one, and alone."""
        first, _, longer = self._examples
        return self.inputs([first, longer]), self.inputs([first])

    def fit(self, anatomy: Anatomy, _: int) -> Anatomy:
        """The anatomy as it is: a text has no prefix."""
        return anatomy

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
