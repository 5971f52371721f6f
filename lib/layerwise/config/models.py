"""The sections ``models`` and ``nano``: where models come from and how each is run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from layerwise.config.base import (
    NAME,
    Distinct,
    Name,
    Positive,
    Section,
    Seed,
    SomeOf,
    later,
    one_of,
)
from layerwise.models import revisions as shorthands
from layerwise.vocabulary import Dtype, Pooling, Readout, Tokens

S = TypeVar("S", bound=Section)


class HubSource(Section):
    """A model on the Hugging Face hub."""

    hub: str = Field(
        min_length=1,
        description="Name on the Hugging Face hub. Revisions are its branches and tags.",
    )
    gguf_file: str | None = Field(None, description="Name of the GGUF file in the repository.")


class FolderSource(Section):
    """A model in a local folder."""

    folder: str = Field(
        min_length=1,
        description="Path of a Hugging Face folder; {revision} in it stands for the revision.",
    )
    gguf_file: str | None = Field(None, description="Name of the GGUF file in the folder.")


class PackageSource(Section):
    """A model in an installed Python package."""

    package: str = Field(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$",
        description="Name of an installed Python package that holds the model.",
    )
    path: str = Field(".", description="Folder in the package.")
    gguf_file: str | None = Field(None, description="Name of the GGUF file in the folder.")


class HubAdapter(Section):
    """An adapter on the Hugging Face hub."""

    hub: str = Field(min_length=1, description="Name on the Hugging Face hub.")
    revision: str = Field("main", min_length=1, description="Branch, tag or commit.")


class FolderAdapter(Section):
    """An adapter in a local folder."""

    folder: str = Field(min_length=1, description="Path of the adapter's folder.")


Source = Annotated[
    Annotated[HubSource, Tag("hub")]
    | Annotated[FolderSource, Tag("folder")]
    | Annotated[PackageSource, Tag("package")],
    one_of("hub", "folder", "package"),
]
"""Where a model comes from."""

Adapter = Annotated[
    Annotated[HubAdapter, Tag("hub")] | Annotated[FolderAdapter, Tag("folder")],
    one_of("hub", "folder"),
]
"""Where an adapter comes from."""

Channels = tuple[float, float, float]


class Preprocess(Section):
    """How a vision model's images are scaled and normalised."""

    size: int = Field(ge=1, le=8192, description="Side in pixels of the square that is cut out.")
    resize: int | None = Field(
        None,
        ge=1,
        le=8192,
        description="Shorter side in pixels that images are scaled to before that; null for size.",
    )
    mean: Channels = Field(
        (0.485, 0.456, 0.406),
        description="What is taken off each channel, whose values are 0 to 1; ImageNet's.",
    )
    std: Channels = Field(
        (0.229, 0.224, 0.225),
        description="What each channel is then divided by; ImageNet's.",
    )


Revisions = Annotated[
    SomeOf[Name],
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "string", "pattern": NAME},
                    "minItems": 1,
                    "uniqueItems": True,
                },
                {"enum": list(shorthands.SHORTHANDS)},
            ]
        }
    ),
]


class Model(Section):
    """A model, its checkpoints, and how it is run."""

    source: Source = Field(description="Where the model comes from.")
    revisions: Revisions = Field(
        ("main",),
        description="The checkpoints, in order of training. For EleutherAI/pythia-… also 'all' "
        "(154) or 'log' (20, evenly on a log scale).",
    )
    max_length: Positive | None = Field(
        None, description="Longest prompt in tokens; null for what the model takes."
    )
    special_tokens: bool = Field(
        True, description="Whether the tokenizer adds its special tokens (BOS, CLS, SEP)."
    )
    trust_remote_code: bool = Field(
        False, description="Whether code that comes with the model may be run."
    )
    device_map: Literal["auto"] | None = Field(
        None,
        description="auto spreads a model that is larger than one GPU over all that are visible.",
    )
    bidirectional: bool = Field(
        False,
        description="Whether a decoder's tokens see later ones too, as in LLM2Vec; Mamba-2 then "
        "scans with half of its heads from the right.",
    )
    adapters: Distinct[Adapter] = Field(
        (),
        description="LoRA adapters (PEFT, safetensors), merged into the weights one after "
        "another.",
    )
    dtype: Dtype | None = Field(
        None, description="Type that this model computes in; null for extract.dtype."
    )
    batch_tokens: Positive | None = Field(
        None,
        description="Tokens in a batch of this model, pads included; null for "
        "extract.batch_tokens.",
    )
    tokens: SomeOf[Tokens] | None = Field(
        None, description="Which tokens of a prompt count for this model; null for the section's."
    )
    poolings: SomeOf[Pooling] | None = Field(
        None, description="Poolings this model is scored with; null for scoring.poolings."
    )
    readouts: SomeOf[Readout] | None = Field(
        None, description="Readouts this model is scored with; null for scoring.readouts."
    )
    prompts: Literal["saved"] | dict[str, str] | None = Field(
        None,
        description="What stands in front of a task's texts, by name as in mteb: of a task and "
        "prompt type (STS12-query), a task, a task type and prompt type (Reranking-query), a task "
        "type, or a prompt type (query, document); the first that there is, in this order; or "
        "`default`, for texts without a prompt type. {instruction} stands for mteb's own "
        "instruction for the task. saved: those in the model's config_sentence_transformers.json. "
        "Corpora have none.",
        json_schema_extra=later(None),
    )
    include_prompt: bool | None = Field(
        None,
        description="Whether the tokens of prompts count in the pooling; null for what is saved "
        "with saved prompts, and else true.",
        json_schema_extra=later(None),
    )

    preprocess: Preprocess | None = Field(
        None,
        description="How images are scaled and normalised for a vision model; null for what its "
        "preprocessor_config.json says.",
        json_schema_extra=later(None),
    )
    mask_ratio: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the patches that a masked autoencoder (ViTMAE) does not see, drawn "
        "for each image.",
        json_schema_extra=later(0.0),
    )

    @field_validator("revisions", mode="before")
    @classmethod
    def _expanded(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, str):
            return tuple(value) if isinstance(value, list) else value
        source = info.data.get("source")
        return shorthands.checkpoints(value, source.hub if isinstance(source, HubSource) else "")

    def over(self, section: S) -> S:
        """A section's settings with this model's own in place of its.

        Parameters
        ----------
        section : Section
            One that says how models are run: it has some of the keys ``dtype``,
            ``batch_tokens``, ``tokens``, ``poolings``, ``readouts``.
        """
        own: dict[str, Any] = {
            key: value
            for key in ("dtype", "batch_tokens", "tokens", "poolings", "readouts")
            if key in type(section).model_fields and (value := getattr(self, key)) is not None
        }
        return section.model_copy(update=own)


class Nano(Section):
    """A small model that the workflow trains."""

    architecture: Literal["gpt_neox", "mamba2", "imagegpt", "vit_mae"] = Field(
        description="Kind of model: of texts gpt_neox or mamba2; of images imagegpt, which "
        "predicts the next pixel, or vit_mae, a masked autoencoder."
    )
    layers: int = Field(6, ge=1, le=100, description="Number of blocks.")
    hidden: int = Field(128, ge=32, le=8192, multiple_of=32, description="Hidden width.")
    vocabulary: int = Field(
        2048,
        ge=300,
        le=200_000,
        description="Size of the BPE vocabulary; of imagegpt the most colours.",
    )
    context: int = Field(128, ge=16, le=16_384, description="Tokens in a training window.")
    side: int = Field(
        8,
        ge=2,
        le=64,
        description="Side in pixels that images are scaled to; each pixel is a token.",
        json_schema_extra=later(8),
    )
    batch: int = Field(8, ge=1, le=4096, description="Windows in a training step.")
    train_steps: Positive = Field(
        512,
        description="Steps of the whole training; the learning rate's schedule ends there.",
    )
    learning_rate: float = Field(0.003, gt=0, le=1, description="Peak learning rate of AdamW.")
    seed: Seed = Field(0, description="Seed of weights and of the order of the windows.")
    objective: Literal["causal", "masked"] = Field(
        "causal",
        description="causal: the next token; masked: 15 % of the tokens from all others, in both "
        "directions, which the model's entry has to say too (bidirectional: true).",
        json_schema_extra=later("causal"),
    )
    corpus: Name | None = Field(
        None,
        description="Corpus of the config that it is trained on; null for all of the quickstart's "
        "Wikipedia text. Models of images need one.",
        json_schema_extra=later(None),
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="Where it is trained.", json_schema_extra=later("cpu")
    )

    @property
    def of_images(self) -> bool:
        """Whether it is trained on images."""
        return self.architecture in ("imagegpt", "vit_mae")

    @model_validator(mode="after")
    def _images(self) -> Self:
        if self.of_images and (self.corpus is None or self.objective != "causal"):
            raise ValueError(
                f"{self.architecture} needs a corpus of images, and has an objective of its own: "
                "name the corpus, and leave objective out"
            )
        return self
