"""Readers: what turns the prompts of a model's medium into its inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import MODEL_MAPPING

from layerwise.corpora.media import media

if TYPE_CHECKING:
    from layerwise.config.models import Model
    from layerwise.models.architectures import Anatomy


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
    """

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
    from layerwise.models.texts import Texts

    return next(filter(None, (medium.reader_of(config) for medium in media())), Texts)
