"""Extract every layer of a model on a corpus, all views, one forward pass each, into one file."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch

from layerwise.activations import eigen, forward, store
from layerwise.activations.forward import FirstTokenAttention
from layerwise.activations.reduce import Needs, Reduced, complete
from layerwise.activations.representation import Packed
from layerwise.config.corpora import Perturb
from layerwise.config.settings import ExtractSettings
from layerwise.corpora.views import perturb as perturbed
from layerwise.corpora.views import vocabulary_of
from layerwise.errors import LayerwiseError, check_name
from layerwise.io import hdf5
from layerwise.io.files import provenance
from layerwise.models.load import LoadedModel
from layerwise.progress import Progress
from layerwise.vocabulary import BLOCK, OUTPUT

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

# Matrices that wait for their eigenvalues: many at once keep all cores busy to the end.
WAITING_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
# Devices on which the pass waits for spectra; on others they are computed while it goes on.
AT_ONCE = ("cpu",)
# Pieces of work that may wait behind the pass, each of up to `WAITING_BYTES`.
IN_FLIGHT = 3


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
    base: Path | None = None,
) -> None:
    """Write the activations file of one model at one revision on one corpus.

    Parameters
    ----------
    prompts : sequence of str, length N
        Ids of the prompts.
    views : sequence of V + 1 sequences of N texts, or of N images or recordings
        View 0 is the prompt itself.
    settings : ExtractSettings
        Results to keep, and settings of the pass. `device`, `dtype` and `threads` are ignored,
        since the model is loaded already.
    attributes : mapping
        Further provenance (the corpus' hash, the seed, …).
    perturb : Perturb, optional
        Changes of the prompts' tokens; excludes views.
    base : Path, optional
        A file of the same pass without the arrays of `settings`: they are added to a copy of it,
        and nothing else is computed.

    Raises
    ------
    LayerwiseError
        If a prompt has no tokens, a state is not finite, the model lacks the readout or known
        sublayers, or memory or disk do not suffice.
    """
    forward.check_readout(loaded, settings.readout)
    loaded.check_tokens(settings.tokens)
    if base is not None:  # the arrays of views, and token states, are there
        views, settings = views[:1], settings.model_copy(update={"token_states": False})
    reduction = Reduction(loaded, settings, prompts, () if base else store.BASE)
    sublayers = _sublayers(loaded, settings.sublayers)
    coming: Iterator[tuple[Sequence[Any], list[int]]] = loaded.prompts_ahead(views)
    ids, cuts = next(coming)
    if perturb is not None:
        vocabulary, special = vocabulary_of(loaded.texts.tokenizer, loaded.texts.n_embeddings)
        ids = [
            perturbed(tokens, perturb, special=special, vocabulary=vocabulary, prompt=prompt)
            for tokens, prompt in zip(ids, prompts, strict=True)
        ]
        attributes = {**attributes, "perturb": perturb.model_dump_json()}
    n = len(prompts)
    token_states = _token_states(loaded, settings, ids)
    rank = max(map(len, ids), default=0)
    labels: dict[str, Sequence[Any]] = {
        "protocol": settings.protocols,
        "tokens": settings.tokens,
        "layer": range(loaded.anatomy.n_layers),
        "view": range(len(views)),
        "prompt": prompts,
        "hidden": range(loaded.anatomy.hidden),
        "rank": range(rank),
    }
    arrays = reduction.needs.arrays
    attention = None
    if "first_token_attention" in arrays:
        watching = FirstTokenAttention(loaded)
        if n_heads := watching.n_heads():
            attention, labels["head"] = watching, range(n_heads)
    if any("top" in store.ARRAYS[name].dims for name in arrays):
        labels["top"] = range(store.LARGEST)
    if reduction.needs.prefix_tokens:
        sizes = np.array(store.prefix_sizes(rank), dtype=int)
        labels["prefix_tokens"] = reduction.needs.prefix_tokens
        labels["prefix"] = np.repeat(sizes, sizes).tolist()
    record = {
        "model": loaded.name,
        "revision": loaded.revision,
        "corpus": corpus,
        "weights_sha256": loaded.weights,
        "dtype": loaded.dtype,
        "device": str(loaded.device),
        "readout": settings.readout,
        "readouts": reduction.readout_of,
        "sink_ratio": settings.sink_ratio,
        **loaded.facts(),
        **attributes,
    }
    size = _window_size(labels, 1 + len(sublayers), token_states, loaded.device.type)
    total_cut = 0
    with (
        store.create(target, labels, provenance(**record), sublayers, arrays, base) as file,
        Progress(n * len(views), f"{loaded.name} {loaded.revision}", loaded.reader.takes) as bar,
        ThreadPoolExecutor(1, thread_name_prefix="write") as writer,
    ):
        if token_states is not None:
            token_states.add_to(file)
        written: Future[Any] = writer.submit(int)
        all_ids = chain([(ids, cuts)], coming) if arrays else ()
        for view, (view_ids, n_cut) in enumerate(all_ids):
            total_cut += sum(cut > 0 for cut in n_cut)
            watched = attention if view == 0 else None
            with watched or nullcontext():
                for rows in forward.windows(n, size):
                    window = Window(labels, sublayers, rows, view, token_states, arrays)
                    forward.run(
                        loaded,
                        [view_ids[row] for row in rows],
                        partial(Batch, reduction, window, watched),
                        sublayers=sublayers,
                        output=reduction.with_output,
                        budget=settings.batch_tokens,
                    )
                    reduction.wait()
                    # One window is written while the next is filled; no third is in memory.
                    written.result()
                    written = writer.submit(window.write, file)
                    del window
                    bar.update(len(rows))
        written.result()
    if total_cut:
        text = "%d of %d texts are longer than %s takes (%d tokens) and were cut"
        log.warning(text, total_cut, n * len(views), loaded.name, loaded.max_length)


def _window_size(
    labels: store.Labels, n_groups: int, token_states: store.TokenStates | None, device: str
) -> int:
    """The number of prompts whose results fill `forward.WINDOW_BYTES`, or at least a few."""
    sizes = {dim: len(values) for dim, values in labels.items()}
    smallest, hidden, rank = 32, sizes["hidden"], sizes["rank"]
    # Embeddings and spectra.
    values = sizes["protocol"] * sizes["tokens"] * sizes["layer"] * n_groups * (hidden + rank)
    if token_states is not None:
        smallest = 8
        values += len(token_states.layers) * rank * hidden
    of_prompt = 4 * values  # bytes of float32
    return max(smallest, forward.WINDOW_BYTES[device] // max(1, of_prompt))


class Reduction:
    """Reduction of the batches of an extraction, with work behind the pass.

    Attributes
    ----------
    needs : Needs
        What is kept of the prompts themselves; views are pooled.
    readout_of : dict
        Readout of each protocol.
    main_readout : str
        Of what all protocols share (norms, largest dimensions, spectra of prefixes).
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: ExtractSettings,
        prompts: Sequence[str],
        base: Sequence[str] = store.BASE,
    ) -> None:
        self.loaded, self.prompts = loaded, prompts
        self.main_readout = settings.readout
        # The authors' code uses `hidden_states` of transformers, of which the last is normed in
        # most decoders.
        has_output = OUTPUT in loaded.anatomy.readouts
        if not has_output and "reference" in settings.protocols:
            text = "%s returns no states: the protocol reference reads its last block's stream"
            log.warning(text, loaded.name)
        readouts = {"paper": settings.readout, "reference": OUTPUT if has_output else "residual"}
        self.readout_of = {protocol: readouts[protocol] for protocol in settings.protocols}
        self.with_output = OUTPUT in (self.main_readout, *self.readout_of.values())
        self.needs = Needs(
            protocols=settings.protocols,
            tokens=settings.tokens,
            arrays=[*base, *_arrays(loaded, settings.arrays)],
            sink_ratio=settings.sink_ratio,
        )
        self.behind: deque[Future[None]] = deque()

    def needs_of(self, layer: int, sublayer: str, view: int) -> dict[str, Needs]:
        """Results to keep of the states that a layer hands over, by readout of these states.

        The last layer comes twice: as 'block' and, if a readout asks for it, as 'output'.
        """
        pooled = [name for name in self.needs.arrays if "view" in store.ARRAYS[name].dims]
        needs = replace(self.needs, arrays=pooled) if view > 0 else self.needs
        if sublayer not in (BLOCK, OUTPUT):
            kept = [name for name in needs.arrays if name != "prefix_spectrum"]
            return {"residual": replace(needs, arrays=kept)}
        is_last = layer == self.loaded.anatomy.n_layers - 1
        protocols_of: dict[str, list[Any]] = {}
        # The main one is read even if no protocol uses it: what protocols share is of its states.
        for protocol, readout in ((None, self.main_readout), *self.readout_of.items()):
            # All layers but the last have no output, but the stream in its place.
            read_as = "residual" if readout == OUTPUT and not is_last else readout
            # 'output' hands over its own readout, 'block' all others.
            if (read_as == OUTPUT) == (sublayer == OUTPUT):
                protocols_of.setdefault(read_as, []).append(protocol)
        return {
            readout: replace(needs, protocols=[*filter(None, some)], shared=None in some)
            for readout, some in protocols_of.items()
        }

    def submit(self, work: Callable[[], None]) -> None:
        """Do work during the pass, after the work submitted before."""
        if self.loaded.device.type in AT_ONCE:
            work()
            return
        self.wait(IN_FLIGHT - 1)
        self.behind.append(eigen.behind(work, self.loaded.device))

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many pieces of the submitted work are not done."""
        try:
            while len(self.behind) > most:
                self.behind.popleft().result()
        except (MemoryError, RuntimeError) as error:
            if not forward.out_of_memory(error):
                raise
            # Not raised again, since the next batch would be halved for it.
            raise LayerwiseError(
                f"{self.loaded.device} has no memory for spectra during the pass; lower "
                "extract.batch_tokens.",
                code="no_memory",
            ) from error


class Batch:
    """One batch, reduced layer by layer while the model runs."""

    def __init__(
        self,
        reduction: Reduction,
        window: Window,
        attention: FirstTokenAttention | None,
        rows: list[int],
    ) -> None:
        self.reduction, self.window, self.rows = reduction, window, rows
        self.attention = attention
        if attention:
            attention.start()
        self.waiting: list[tuple[int, str, Reduced]] = []

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Reduce one layer's states."""
        loaded, states_of = self.reduction.loaded, self.window.token_states
        all_needs = self.reduction.needs_of(layer, sublayer, self.window.view)
        for readout, needs in all_needs.items():
            states = forward.read(loaded, packed, readout)
            reduced = Reduced(states, needs)
            if sublayer in (BLOCK, OUTPUT) and needs.shared:
                if self.attention and (attended := self.attention.take(packed)) is not None:
                    reduced.arrays["first_token_attention"] = attended
                if states_of is not None and layer in states_of.layers:
                    # A copy, since the model may go on in the same memory.
                    dtype = torch.float16 if states_of.dtype == "f2" else torch.float32
                    reduced.arrays["states"] = states.states.to(dtype, copy=True)
            self.waiting.append((layer, sublayer, reduced))
        limit = WAITING_BYTES[packed.states.device.type]
        if sum(reduced.waiting_bytes for *_, reduced in self.waiting) > limit:
            self.finish()

    def finish(self) -> None:
        """Complete what is waiting; on a GPU, later, while the pass goes on.

        Nothing in the pass waits for the device. If the batch is halved, its results are written
        over.
        """
        waiting, self.waiting = self.waiting, []
        self.reduction.submit(partial(self._complete, waiting))

    def _complete(self, waiting: Sequence[tuple[int, str, Reduced]]) -> None:
        """Complete the results of some layers and move them to the window."""
        self._check(waiting)
        complete([reduced for *_, reduced in waiting])
        all_protocols = self.reduction.needs.protocols
        tensors = [tensor for *_, reduced in waiting for tensor in reduced.arrays.values()]
        copies = iter(eigen.to_host(tensors)())
        for layer, sublayer, reduced in waiting:
            arrays = {name: next(copies) for name in reduced.arrays}
            if "states" in arrays:
                self.window.put_states(layer, self.rows, arrays.pop("states"))
            protocols = [all_protocols.index(protocol) for protocol in reduced.needs.protocols]
            group = BLOCK if sublayer == OUTPUT else sublayer
            self.window.put(group, layer, self.rows, protocols, arrays)

    def _check(self, waiting: Sequence[tuple[int, str, Reduced]]) -> None:
        """Refuse states that are not finite, before numpy does; of several layers at once."""
        if not waiting:
            return
        device = waiting[0][2].mean.device
        means = torch.stack([reduced.mean.to(device) for *_, reduced in waiting])
        finite = means.isfinite().all(dim=2)
        if bool(finite.all()):
            return
        number, row = finite.logical_not().nonzero()[0].tolist()
        layer, sublayer, _ = waiting[number]
        of_sublayer = "" if sublayer == BLOCK else f" ({sublayer})"
        prompt = self.reduction.prompts[self.window.prompts[self.rows[row]]]
        raise self.reduction.loaded.not_finite(
            f"layer {layer}{of_sublayer} for prompt {prompt!r} (view {self.window.view})"
        )


def _token_states(
    loaded: LoadedModel, settings: ExtractSettings, ids: Sequence[Any]
) -> store.TokenStates | None:
    """Token states to keep of the prompts; None if none are asked for."""
    if not settings.token_states:
        return None
    layers = settings.layers or tuple(range(loaded.anatomy.n_layers))
    for layer in layers:
        what = f"layer in extract.layers of {loaded.name}"
        check_name(what, layer, range(loaded.anatomy.n_layers))
    offsets = np.cumsum([0, *map(len, ids)], dtype=np.int64)
    of_text = not ids or isinstance(ids[0], list)
    tokens = [np.asarray(i if of_text else np.full(len(i), -1), np.int32) for i in ids]
    dtype = "f2" if settings.token_states == "float16" else "f4"
    return store.TokenStates(layers, offsets, np.concatenate(tokens), dtype)


def _arrays(loaded: LoadedModel, asked: Sequence[str]) -> list[str]:
    """The arrays that are asked for, without those of causal models for another."""
    for name in asked:
        check_name("array", name, store.ARRAYS)
    causal = {*asked} & {"prefix_spectrum", "first_token_attention"}
    if not causal or loaded.is_causal:
        return [*asked]
    log.info("%s is not causal; its file has no %s", loaded.name, " and no ".join(sorted(causal)))
    return [name for name in asked if name not in causal]


def _sublayers(loaded: LoadedModel, asked: Sequence[str]) -> tuple[str, ...]:
    """Of the sublayers that are asked for, those that the model has."""
    if not asked:
        return ()
    loaded.require_model("extract.sublayers")
    has = loaded.anatomy.sublayers
    if absent := [name for name in asked if name not in has]:
        text = "%s (architecture %r) has no %s; its file holds %s"
        lists = " and no ".join(absent), ", ".join(has)
        log.warning(text, loaded.name, loaded.anatomy.kind, *lists)
    return tuple(name for name in has if name in asked)


class Window:
    """Results of successive prompts of one view in memory, until they are written.

    It uses the file only to write, so a window can be filled while another is written.

    Parameters
    ----------
    labels, sublayers
        As for `layerwise.activations.store.create`.
    prompts : range
        Numbers of the prompts.
    view : int
        0 for the prompts themselves.
    token_states : TokenStates, optional
        Token states to keep of the prompts themselves.
    arrays : sequence of str
        As for `layerwise.activations.store.create`.
    """

    def __init__(
        self,
        labels: store.Labels,
        sublayers: Sequence[str],
        prompts: range,
        view: int,
        token_states: store.TokenStates | None = None,
        arrays: Sequence[str] = store.BASE,
    ) -> None:
        self.prompts, self.view = prompts, view
        self.token_states = token_states if view == 0 else None
        if self.token_states is not None:
            first, last = self.token_states.offsets[[prompts.start, prompts.stop]].tolist()
            self.tokens = slice(first, last)
            shape = (len(self.token_states.layers), last - first, len(labels["hidden"]))
            self.states = np.full(shape, np.nan, self.token_states.dtype)
        self.arrays: dict[tuple[str, str], Array] = {}
        sizes = {dim: len(values) for dim, values in {**labels, "prompt": prompts}.items()}
        for sublayer, name in store.array_names(labels, sublayers, arrays):
            spec = store.ARRAYS[name]
            if view and "view" not in spec.dims:
                continue
            dims = [dim for dim in spec.dims if dim != "view"]
            array = np.full([sizes[dim] for dim in dims], spec.empty, spec.dtype)
            if sublayer != BLOCK and array.dtype.kind == "f":
                # A sublayer is of a block: the embedding output has none.
                np.moveaxis(array, dims.index("layer"), 0)[0] = np.nan
            self.arrays[sublayer, name] = array

    def put(
        self,
        sublayer: str,
        layer: int,
        rows: Sequence[int],
        protocols: Sequence[int],
        arrays: Mapping[str, Array],
    ) -> None:
        """Take in a batch's results at a layer.

        Parameters
        ----------
        rows : sequence of int
            The batch's prompts, by their number in the window.
        protocols : sequence of int
            For arrays with a protocol axis: the file's number of each protocol on it.
        arrays : mapping of arrays
            The last axis of spectra and norms may be shorter than the file's.
        """
        chosen: dict[str, Any] = {"layer": layer, "prompt": rows}
        for name, values in arrays.items():
            window = self.arrays[sublayer, name]
            dims = [dim for dim in store.ARRAYS[name].dims if dim != "view"]
            index = [chosen.get(dim, slice(None)) for dim in dims]
            if dims[-1] != "prompt":
                index[-1] = slice(values.shape[-1])
            if dims[0] != "protocol":
                window[tuple(index)] = values
                continue
            # One by one: a list index apart from those of layer and prompt moves numpy's axes.
            for protocol, of_protocol in zip(protocols, values, strict=True):
                window[protocol][tuple(index[1:])] = of_protocol

    def put_states(self, layer: int, rows: Sequence[int], states: Array) -> None:
        """Take in the token states of a batch's prompts at a layer, shape (B, T, D)."""
        if np.isinf(states).any():
            raise LayerwiseError(
                f"Token states of layer {layer} are too large for float16; set "
                "extract.token_states: true.",
                code="out_of_range",
            )
        assert self.token_states is not None
        of_layer = self.states[self.token_states.layers.index(layer)]
        for row, of_prompt in zip(rows, states, strict=True):
            start, stop = self.token_states.offsets[self.prompts[row] :][:2] - self.tokens.start
            of_layer[start:stop] = of_prompt[: stop - start]

    def write(self, file: h5py.File) -> None:
        """Write the results to their place in the file."""
        if self.token_states is not None:
            hdf5.write(file["token_states"], (slice(None), self.tokens), self.states)
        chosen = {"prompt": slice(self.prompts.start, self.prompts.stop), "view": self.view}
        for (sublayer, name), array in self.arrays.items():
            index = tuple(chosen.get(dim, slice(None)) for dim in store.ARRAYS[name].dims)
            hdf5.write(store.group_of(file, sublayer)[name], index, array)
