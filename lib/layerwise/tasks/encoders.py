"""Two encoders for mteb's evaluators: one records what they ask for, one looks it up.

A text stands there as it is, an image by the SHA-256 of its file's bytes.

Importing this imports mteb, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction

from layerwise.corpora.images import read_file
from layerwise.errors import LayerwiseError
from layerwise.files import sha256_bytes
from layerwise.tasks.prompts import key_of

Array = npt.NDArray[Any]

# mteb wants "organization/model"; names without one are put under this.
ORGANIZATION = "layerwise"

# Rows of which it is remembered whose they are: 8 MB.
MOST_KEPT = 1_000_000


def model_meta(
    model: str,
    revision: str,
    experiment: Mapping[str, Any] | None = None,
    hidden: int | None = None,
    modality: str = "text",
) -> ModelMeta:
    """What mteb's results say of the model: cosine similarity, what it takes, how it was read."""
    return ModelMeta.create_empty(
        {
            "name": model if "/" in model else f"{ORGANIZATION}/{model}",
            "revision": revision,
            "similarity_fn_name": ScoringFunction.COSINE,
            "embed_dim": hidden,
            "modalities": [modality],
            "experiment_kwargs": dict(experiment) if experiment else None,
        }
    )


def texts_of(inputs: Any) -> list[str]:
    """The texts of one of mteb's data loaders, in order.

    If the loader goes straight through a data set, the column is read at once: row by row takes
    longer than all evaluators do.
    """
    if straight_through(inputs):
        return list(inputs.dataset["text"][:])
    return [text for batch in inputs for text in batch["text"]]


def straight_through(inputs: Any) -> bool:
    """Whether one of mteb's data loaders gives a data set's rows in order."""
    from datasets import Dataset
    from torch.utils.data import SequentialSampler

    return isinstance(inputs.dataset, Dataset) and isinstance(inputs.sampler, SequentialSampler)


def of_images(task_metadata: Any) -> bool:
    """Whether a task's evaluators ask for images."""
    return "image" in task_metadata.modalities


def images_of(inputs: Any, task: str) -> Iterator[bytes]:
    """The images of one of mteb's data loaders, in order: the bytes of their files.

    Raises
    ------
    LayerwiseError
        If the task's data hold them as something else, or one is missing.
    """
    from datasets import Dataset, Image

    data = inputs.dataset
    feature = data.features.get("image") if isinstance(data, Dataset) else None
    if not isinstance(feature, Image):
        raise LayerwiseError(
            f"The images of {task} come as {type(feature or data).__name__}; accepted are "
            "data sets whose column of images has the feature Image."
        )
    held = data.select_columns(["image"]).cast_column("image", Image(decode=False))
    for place, row in enumerate(held):
        found = row["image"] or {}
        if found.get("bytes"):
            yield found["bytes"]
        elif found.get("path"):
            yield read_file(found["path"], f"{task} {place}")
        else:
            raise LayerwiseError(f"The data of {task} have no image in row {place} (from 0).")


class TextRecorder(AbsEncoder):
    """Records what it is asked to encode, and returns noise of two dimensions.

    Attributes
    ----------
    texts : dict
        The distinct pairs of prompt type (empty for none) and text, in the order in which they
        were asked for first.
    images : dict
        The bytes of the images among them, by their hash.
    instructions : dict
        mteb's instruction for each prompt type that came.
    """

    def __init__(self) -> None:
        self.mteb_model_meta = model_meta("recorder", "none")
        self.texts: dict[tuple[str, str], None] = {}
        self.images: dict[str, bytes] = {}
        self.instructions: dict[str, str] = {}
        self._noise = np.random.default_rng(0)

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> Array:
        """Record what came; returns noise of shape (N, 2)."""
        name = type_name(prompt_type)
        if of_images(task_metadata):
            texts = []
            for data in images_of(inputs, task_metadata.name):
                texts.append(sha256_bytes(data))
                self.images.setdefault(texts[-1], data)
        else:
            texts = texts_of(inputs)
        self.texts.update(dict.fromkeys((name, text) for text in texts))
        if name not in self.instructions:
            # mteb returns all of a task's instructions for a text without a prompt type.
            said = self.get_instruction(task_metadata, prompt_type)
            self.instructions[name] = said if isinstance(said, str) else ""
        return self._noise.normal(size=(len(texts), 2)).astype(np.float32)


def type_name(prompt_type: Any) -> str:
    """The name of one of mteb's prompt types; empty for none."""
    return prompt_type.value if prompt_type else ""


class StoredEncoder(AbsEncoder):
    """Looks up stored embeddings, of one layer at a time.

    Parameters
    ----------
    keys : sequence of str
        What each pair of prompt and text is known by (`layerwise.tasks.prompts.key_of`).
    source : str
        Where the embeddings are from, for errors.
    prompts : mapping, optional
        The prompt in front of the texts of each prompt type.
    """

    def __init__(
        self,
        meta: ModelMeta,
        keys: tuple[str, ...],
        source: str,
        prompts: Mapping[str, str] | None = None,
    ) -> None:
        self.mteb_model_meta = meta
        self._rows = {key: row for row, key in enumerate(keys)}
        self._known: dict[tuple[str, str], int] = {}
        self._asked: dict[tuple[str, str] | None, Array] = {}
        self._source = source
        self._prompts = prompts or {}
        self._embeddings: Array | None = None

    def use(self, embeddings: Array) -> None:
        """Take the embeddings of shape (N, D) of the layer that is scored next."""
        self._embeddings = embeddings

    def encode(
        self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> Array:
        """Look up what came; shape (N, D), float32.

        Raises
        ------
        LayerwiseError
            If a text is not among those that were embedded.
        """
        assert self._embeddings is not None
        prompt = self._prompts.get(type_name(prompt_type), "")
        if of_images(task_metadata):
            hashes = map(sha256_bytes, images_of(inputs, task_metadata.name))
            return self._embeddings[self._find(prompt, hashes)]
        # Most tasks ask for the same data at every layer.
        data = (prompt, inputs.dataset._fingerprint) if straight_through(inputs) else None
        rows = self._asked.get(data)
        if rows is None:
            rows = self._find(prompt, texts_of(inputs))
            if data and sum(map(len, self._asked.values())) + len(rows) <= MOST_KEPT:
                self._asked[data] = rows
        return self._embeddings[rows]

    def _find(self, prompt: str, texts: Iterable[str]) -> Array:
        """The rows of texts behind a prompt."""
        asked = [(prompt, text) for text in texts]
        self._learn(asked)
        return np.array([self._known[pair] for pair in asked], np.intp)

    def _learn(self, asked: list[tuple[str, str]]) -> None:
        """Find the rows of texts that are asked for the first time."""
        for pair in asked:
            if pair in self._known:
                continue
            row = self._rows.get(key_of(*pair))
            if row is None:
                prompt, text = pair
                behind = f" behind the prompt {prompt[:60]!r}" if prompt else ""
                raise LayerwiseError(
                    f"{self._source} has no embedding of the text {text[:60]!r}{behind}: it was "
                    "made for other data; delete it and run snakemake again."
                )
            self._known[pair] = row
