"""The section ``extract``: how models are run, and what is kept of each layer."""

from __future__ import annotations

from pydantic import Field

from layerwise.config.base import Distinct, Positive, Section, SomeOf, later
from layerwise.vocabulary import Dtype, Protocol, Readout, Sublayer, Tokens


class ExtractSettings(Section):
    """How models are run, and what is kept of each layer."""

    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:[0-9][0-9]?[0-9]?)?)$",
        description="auto, cpu, cuda or cuda:N; auto takes a GPU if there is one and says so in "
        "the log.",
    )
    dtype: Dtype = Field("float32", description="Type that the model computes in.")
    readout: Readout = Field(
        "residual",
        description="residual: the stream after each block; final_norm: the model's last norm "
        "applied to each; output: the last layer as the model hands it out, the others as they "
        "are. The protocol reference always reads output, as the authors' code does.",
    )
    tokens: SomeOf[Tokens] = Field(
        ("all", "drop_first"), description="Which tokens of a prompt count, side by side."
    )
    protocols: SomeOf[Protocol] = Field(
        ("paper", "reference"),
        description="How token states are normalised before they are pooled, side by side.",
    )
    spectra: bool = Field(
        True,
        description="Whether each prompt's token spectrum is computed; prompt entropy needs it.",
    )
    prefixes: bool = Field(
        False,
        description="Whether the spectra of each prompt's first t tokens are kept, for t on a "
        "grid (1, 2, 3, 4, 6, 8, 11, 16, …); prefix_entropy needs them. Of causal models alone; "
        "another leaves them out and says so.",
        json_schema_extra=later(False),
    )
    sink_ratio: float = Field(
        5.0,
        gt=1,
        le=1_000_000,
        description="drop_sinks leaves out tokens whose norm is more than this many times the "
        "median norm of the prompt at the layer.",
        json_schema_extra=later(5.0),
    )
    curvature: bool = Field(True, description="Whether each prompt's curvature is computed.")
    sublayers: Distinct[Sublayer] = Field(
        (),
        description="Parts of each block that are kept beside its output; a model without one of "
        "them (Mamba has no MLP, BERT no input norm) leaves it out and says so.",
    )
    keep_states: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Of how many prompts, from the first, the token states themselves are kept, "
        "for a reader's own analyses.",
    )
    batch_tokens: Positive | None = Field(
        None,
        description="Tokens in a batch, pads included; null for what suits the device.",
    )
    shards: int = Field(
        1,
        ge=1,
        le=1000,
        description="Jobs that a corpus is spread over, each with a file of its own: several GPUs "
        "work on it at once, and a kill costs one of them. For 100,000 prompts and more.",
        json_schema_extra=later(1),
    )
    threads: int = Field(2, ge=1, le=1024, description="CPU threads of a job.")
