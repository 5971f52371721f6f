"""Extract every layer of a model on a corpus, all views, one forward pass each, into one file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from layerwise.activations import batches, forward, layout
from layerwise.activations.readout import PROTOCOLS, SINK_RATIO
from layerwise.activations.reduce import Needs
from layerwise.activations.slabs import Slab
from layerwise.errors import LayerwiseError, closest
from layerwise.files import provenance
from layerwise.models.architectures import BLOCK, SUBLAYERS
from layerwise.models.load import LoadedModel
from layerwise.progress import Progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What is to be kept of the pass.

    Attributes
    ----------
    tokens : choices of which tokens count, of `layerwise.activations.readout.TOKENS`
    readout : 'residual' or 'final_norm'
    keep_states : of how many prompts, from the first, the token states themselves are kept
    budget : tokens in a batch; None for what suits the device
    protocols : of `layerwise.activations.readout.PROTOCOLS`
    spectra, curvature : whether each prompt's token spectrum and curvature are computed
    sublayers : what is kept beside the blocks, of `layerwise.models.architectures.SUBLAYERS`;
        those that a model does not have are left out and named in the log and the file
    """

    tokens: tuple[str, ...] = ("all", "drop_first")
    readout: str = "residual"
    keep_states: int = 2
    budget: int | None = None
    protocols: tuple[str, ...] = PROTOCOLS
    spectra: bool = True
    curvature: bool = True
    sublayers: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Plan:
        """From the ``extract`` entry of a config; missing keys have their defaults."""
        lists = ("tokens", "protocols", "sublayers")
        single = ("readout", "keep_states", "spectra", "curvature")
        given: dict[str, Any] = {k: tuple(settings[k]) for k in lists if k in settings}
        given |= {k: settings[k] for k in single if k in settings}
        return cls(budget=settings.get("batch_tokens"), **given)

    @property
    def needs(self) -> Needs:
        """What is kept of the states of a prompt."""
        return Needs(self.protocols, self.tokens, self.spectra, self.curvature)


def extract(
    loaded: LoadedModel,
    *,
    corpus: str,
    prompts: Sequence[str],
    views: Sequence[Sequence[str]],
    plan: Plan,
    target: Path,
    attributes: Mapping[str, Any],
) -> None:
    """Write the activations file of one model at one revision on one corpus.

    Parameters
    ----------
    prompts : sequence of str, length N
        Ids of the prompts.
    views : sequence of V + 1 sequences of N texts
        View 0 is the prompt itself.
    attributes : mapping
        Further provenance (the corpus' hash, the seed, …).

    Raises
    ------
    LayerwiseError
        If a prompt has no tokens, a state is not finite, a sublayer is unknown, or memory or
        disk do not suffice.
    """
    inner = _sublayers(loaded, plan)
    n, n_layers, hidden = len(prompts), loaded.anatomy.n_layers, loaded.anatomy.hidden
    tokenised = loaded.tokenize_ahead(views)
    ids, n_cut = next(tokenised)
    rank = max(map(len, ids), default=0)
    state_lengths = [len(prompt) for prompt in ids[: plan.keep_states]]
    record = provenance(
        **{
            "model": loaded.name,
            "revision": loaded.revision,
            "corpus": corpus,
            "weights_sha256": loaded.weights,
            "dtype": loaded.dtype,
            "device": str(loaded.device),
            "readout": plan.readout,
            "special_tokens": loaded.special_tokens,
            "max_length": loaded.max_length,
            "sink_ratio": SINK_RATIO,
            **attributes,
        }
    )
    kinds = len(plan.protocols) * len(plan.tokens)
    per_layer = kinds * (hidden * 4 + (rank * 8 if plan.spectra else 0))
    per_prompt = per_layer * (n_layers + len(inner) * (n_layers - 1))
    window = max(32, min(n, batches.WINDOW_BYTES[loaded.device.type] // max(1, per_prompt)))
    with (
        layout.create(
            target, protocols=plan.protocols, tokens=plan.tokens, n_layers=n_layers,
            n_views=len(views), prompts=prompts, hidden=hidden, rank=rank,
            state_lengths=state_lengths, attributes=record, sublayers=inner,
            spectra=plan.spectra, curvature=plan.curvature,
        ) as file,
        Progress(n * len(views), f"{loaded.name} {loaded.revision}", "text") as bar,
    ):  # fmt: skip
        total_cut = 0
        for view in range(len(views)):
            if view > 0:
                ids, n_cut = next(tokenised)
            file["n_cut"][view] = n_cut
            total_cut += sum(n > 0 for n in n_cut)
            for part in batches.windows(n, window):
                slab = Slab(loaded, plan.needs, plan.readout, inner, part, view, prompts,
                            rank, state_lengths)  # fmt: skip
                forward.run(
                    loaded, [ids[i] for i in part], slab.start, sublayers=inner,
                    budget=plan.budget,
                )  # fmt: skip
                slab.write(file)
                # Not until the next one is made: two of them would be in memory.
                del slab
                bar.update(len(part))
    if total_cut:
        log.warning(
            "%d of %d texts are longer than %s takes (%d tokens) and were cut",
            total_cut, n * len(views), loaded.name, loaded.max_length,
        )  # fmt: skip


def _sublayers(loaded: LoadedModel, plan: Plan) -> tuple[str, ...]:
    """The sublayers beside the block that are asked for and that the model has."""
    for name in plan.sublayers:
        if name not in SUBLAYERS:
            raise LayerwiseError(
                f"extract.sublayers: {name!r} came{closest(name, SUBLAYERS)}; accepted are "
                f"{', '.join(SUBLAYERS)}."
            )
    wanted = [name for name in plan.sublayers if name != BLOCK]
    if not wanted:
        return ()
    there = loaded.anatomy.sublayers
    absent = [name for name in wanted if name not in there]
    if absent:
        log.warning(
            "%s (architecture %r) has no %s; its file holds %s",
            loaded.name, loaded.anatomy.kind, " and no ".join(absent), ", ".join(there),
        )  # fmt: skip
    return tuple(name for name in SUBLAYERS if name in wanted and name in there)


def set_threads(threads: int) -> None:
    """Give torch `threads` CPU threads; everything else of ours runs in one."""
    torch.set_num_threads(threads)
