"""Extract every layer of a model on a corpus, all views, one forward pass each, into one file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from layerwise.activations import batches, forward, layout
from layerwise.activations.places import prefix_sizes
from layerwise.activations.reduce import Needs
from layerwise.activations.slabs import Slab
from layerwise.config.corpora import Perturb
from layerwise.config.extraction import ExtractSettings
from layerwise.corpora.perturb import perturb as perturbed
from layerwise.corpora.perturb import vocabulary_of
from layerwise.files import provenance
from layerwise.models.architectures import OUTPUT
from layerwise.models.load import LoadedModel
from layerwise.progress import Progress

log = logging.getLogger(__name__)


def extract(
    loaded: LoadedModel,
    *,
    corpus: str,
    prompts: Sequence[str],
    views: Sequence[Sequence[Any]],
    settings: ExtractSettings,
    target: Path,
    attributes: Mapping[str, Any],
    perturb: Perturb | None = None,
) -> None:
    """Write the activations file of one model at one revision on one corpus.

    Parameters
    ----------
    prompts : sequence of str, length N
        Ids of the prompts.
    views : sequence of V + 1 sequences of N texts, or of N images
        View 0 is the prompt itself.
    settings : ExtractSettings
        What is kept of the pass, and how it is run. Its `device`, `dtype` and `threads` are the
        caller's, in loading the model.
    attributes : mapping
        Further provenance (the corpus' hash, the seed, …).
    perturb : Perturb, optional
        What becomes of the tokens of the prompts, of which there are no views then.

    Raises
    ------
    LayerwiseError
        If a prompt has no tokens, a state is not finite, the model lacks the readout or known
        sublayers, or memory or disk do not suffice.
    """
    forward.check_readout(loaded, settings.readout)
    loaded.check_tokens(settings.tokens)
    readouts = readouts_of(loaded, settings)
    prefixes = settings.prefixes and _causal(loaded)
    needs = Needs(
        settings.protocols, settings.tokens, settings.spectra, settings.curvature, prefixes,
        settings.sink_ratio, norms=settings.spectra,
    )  # fmt: skip
    inner = _sublayers(loaded, settings.sublayers)
    n, n_layers, hidden = len(prompts), loaded.anatomy.n_layers, loaded.anatomy.hidden
    coming = loaded.prompts_ahead(views)
    ids, n_cut = next(coming)
    if perturb is not None:
        ids = [*_perturbed(loaded, ids, prompts, perturb)]
        attributes = {**attributes, "perturb": perturb.model_dump_json()}
    rank = max(map(len, ids), default=0)
    state_lengths = [len(prompt) for prompt in ids[: settings.keep_states]]
    record = provenance(
        **{
            "model": loaded.name,
            "revision": loaded.revision,
            "corpus": corpus,
            "weights_sha256": loaded.weights,
            "dtype": loaded.dtype,
            "device": str(loaded.device),
            "readout": settings.readout,
            "readouts": readouts,
            "special_tokens": loaded.special_tokens,
            "max_length": loaded.max_length,
            "sink_ratio": settings.sink_ratio,
            **({"image_processor": loaded.images.described()} if loaded.images else {}),
            **attributes,
        }
    )
    kinds = len(settings.protocols) * len(settings.tokens)
    per_layer = kinds * (hidden * 4 + (rank * 8 if settings.spectra else 0))
    per_prompt = per_layer * n_layers * (1 + len(inner))
    window = max(32, min(n, batches.WINDOW_BYTES[loaded.device.type] // max(1, per_prompt)))
    with_output = OUTPUT in (settings.readout, *readouts.values())
    kind = "image" if loaded.images else "text"
    with (
        layout.create(
            target, protocols=settings.protocols, tokens=settings.tokens, n_layers=n_layers,
            n_views=len(views), prompts=prompts, hidden=hidden, rank=rank,
            state_lengths=state_lengths, attributes=record, sublayers=inner,
            spectra=settings.spectra, curvature=settings.curvature,
            prefixes=dict.fromkeys(needs.prefix_tokens, prefix_sizes(rank)),
        ) as file,
        Progress(n * len(views), f"{loaded.name} {loaded.revision}", kind) as bar,
        ThreadPoolExecutor(1, thread_name_prefix="write") as writer,
    ):  # fmt: skip
        total_cut = 0
        written: Future[None] | None = None
        for view in range(len(views)):
            if view > 0:
                ids, n_cut = next(coming)
            file["n_cut"][view] = n_cut
            total_cut += sum(n > 0 for n in n_cut)
            for part in batches.windows(n, window):
                slab = Slab(loaded, needs, readouts, settings.readout, inner, part, view,
                            prompts, rank, state_lengths)  # fmt: skip
                forward.run(
                    loaded, [ids[i] for i in part], slab.start, sublayers=inner,
                    output=with_output, budget=settings.batch_tokens,
                )  # fmt: skip
                slab.wait()
                # One is written while the next is filled; no third is in memory.
                if written is not None:
                    written.result()
                written = writer.submit(slab.write, file)
                del slab
                bar.update(len(part))
        if written is not None:
            written.result()
    if total_cut:
        log.warning(
            "%d of %d texts are longer than %s takes (%d tokens) and were cut",
            total_cut, n * len(views), loaded.name, loaded.max_length,
        )  # fmt: skip


def readouts_of(loaded: LoadedModel, settings: ExtractSettings) -> dict[str, str]:
    """What each protocol reads: ``paper`` as the settings say, ``reference`` the model's output.

    The authors' code takes transformers' ``hidden_states``, the last of which most decoders give
    after their last norm.
    """
    there = OUTPUT in loaded.anatomy.readouts
    if not there and "reference" in settings.protocols:
        log.warning(
            "%s hands out no states of its own: the protocol reference reads the stream after its "
            "last block", loaded.name,
        )  # fmt: skip
    readouts = {"paper": settings.readout, "reference": OUTPUT if there else "residual"}
    return {protocol: readouts[protocol] for protocol in settings.protocols}


def _causal(loaded: LoadedModel) -> bool:
    found = loaded.is_causal()
    if not found:
        log.warning(
            "in %s (architecture %r) tokens see those after them, so that the states of a "
            "prompt's first tokens are not those of a shorter prompt; its file holds no prefixes",
            loaded.name, loaded.anatomy.kind,
        )  # fmt: skip
    return found


def token_ids(
    loaded: LoadedModel,
    prompts: Sequence[str],
    texts: Sequence[str],
    *,
    perturb: Perturb | None = None,
) -> list[list[int]]:
    """The tokens of prompts as `extract` hands them to the model."""
    ids, _ = loaded.tokenize(list(texts))
    return ids if perturb is None else _perturbed(loaded, ids, prompts, perturb)


def _perturbed(
    loaded: LoadedModel, ids: Sequence[Any], prompts: Sequence[str], how: Perturb
) -> list[list[int]]:
    rows = len(loaded.model.get_input_embeddings().weight)  # type: ignore[operator]
    vocabulary, special = vocabulary_of(loaded.tokenizer, rows)
    return [
        perturbed(own, how, special=special, vocabulary=vocabulary, prompt=prompt)
        for own, prompt in zip(ids, prompts, strict=True)
    ]


def _sublayers(loaded: LoadedModel, wanted: Sequence[str]) -> tuple[str, ...]:
    """Of the sublayers that are asked for, those that the model has."""
    if not wanted:
        return ()
    there = loaded.anatomy.sublayers
    absent = [name for name in wanted if name not in there]
    if absent:
        log.warning(
            "%s (architecture %r) has no %s; its file holds %s",
            loaded.name, loaded.anatomy.kind, " and no ".join(absent), ", ".join(there),
        )  # fmt: skip
    return tuple(name for name in there if name in wanted)


def set_threads(threads: int) -> None:
    """Give torch `threads` CPU threads; eigenvalues and Gram matrices are spread over as many."""
    torch.set_num_threads(threads)
