"""The section ``extract``: how models are run, and what is kept of each layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from layerwise.section import Count, Distinct, Positive, Section, SomeOf, Threads
from layerwise.vocabulary import SINK_RATIO, Dtype, Protocol, Readout, Sublayer, Tokens


class ExtractSettings(Section):
    """Extraction: how models run, and what is kept of each layer."""

    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")
    """auto, cpu, cuda or cuda:N; auto takes a GPU if there is one."""
    dtype: Dtype = "float32"
    """Type that models compute in."""
    readout: Readout = "residual"
    """residual: the residual stream after each block; final_norm: the final norm applied to it;
    output: the residual stream, and the model's output as the last layer. The protocol reference
    always uses output, as the authors' code does."""
    tokens: SomeOf[Tokens] = ("all",)
    """Token selections to extract; several are kept side by side."""
    protocols: SomeOf[Protocol] = ("paper",)
    """Formulas as in the paper (paper), or as in the authors' code of 2025 (reference)."""
    prefixes: bool = False
    """Keep the spectra of each prompt's first t tokens for t = 1, 2, 3, 4, 6, 8, 11, 16, …, which
    prefix_entropy needs. Causal models only."""
    attention: bool = False
    """Keep each head's mean attention to the first token, which sink_rate needs: prompts then run
    with eager attention. Causal models only."""
    sink_ratio: float = Field(SINK_RATIO, gt=1, le=1_000_000)
    """drop_sinks drops tokens whose norm is more than this many times the median norm of the
    prompt at the layer."""
    sublayers: Distinct[Sublayer] = ()
    """Sub-layers of each block to keep in addition to its output. A model without one of them
    skips it (Mamba has no MLP, BERT no input norm)."""
    token_states: bool | Literal["float16"] = False
    """Keep the states of all tokens of each prompt, with the readout above, in float32 or float16.
    They take the number of tokens times the disk of a pooled layer; `layerwise plan` says how
    much."""
    layers: SomeOf[Count] | None = None
    """Layers whose token states are kept; null for all."""
    batch_tokens: Positive | None = None
    """Tokens in a batch, padding included; null chooses by device."""
    threads: Threads = 2
    """CPU threads of a job."""
    keep_activations: bool = True
    """Keep activations once their metrics are computed. Without them, another metric needs the
    model again."""
