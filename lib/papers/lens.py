"""Log-likelihoods of answers at every layer, through the final norm and the unembedding.

The plain logit lens (nostalgebraist 2020) reads the states after block l as if they were the last
ones. Chance at a layer means that the last layer's readout finds no answer there; one that is
trained for the layer might find it (Belrose et al. 2023, arXiv 2303.08112). At the last layer the
readout is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from layerwise.activations import forward
from layerwise.activations.embedding import embed
from layerwise.activations.representation import Packed, Representation
from layerwise.models.load import DTYPES, LoadedModel
from layerwise.models.source import locate
from layerwise.tasks.task import NoScoreError
from layerwise.vocabulary import BLOCK, SCORED_READOUTS
from papers.questions import Answer

Floats = npt.NDArray[np.float64]

# Memory of the logits of one layer.
LOGITS_BYTES = 64 * 2**20


class NoAnswersError(NoScoreError):
    """A model without a readout of the next token that every layer can be read with."""


# From states of shape (n, D), rows of them and a token each to the tokens' log-probabilities.
Lens = Callable[[Tensor, Tensor, Tensor], Tensor]


@torch.inference_mode()
def lens_of(loaded: LoadedModel) -> Lens:
    """The readout of a causal language model; of its files, no block is loaded.

    Raises
    ------
    NoAnswersError
        If the model takes images, sees later tokens, has no unembedding in its files, or hands out
        other states than its last block's (after its final norm).
    """
    if loaded.reader.takes != "text" or not loaded.is_causal:
        raise NoAnswersError(f"{loaded.name} predicts no next token.")
    norm = loaded.anatomy.final_norm
    if not loaded.anatomy.output or (norm is None and not _hands_out_last(loaded)):
        raise NoAnswersError(
            f"{loaded.name} hands out other states than its last block's, so its unembedding "
            "cannot read other layers."
        )
    # Of a model that is spread over several devices, the last norm is on the last.
    device = next((p.device for p in norm.parameters()), loaded.device) if norm else loaded.device
    # The unembedding, with all that the model does to its logits: the language model around a body
    # that hands out the states that it is given.
    head = _head(loaded).to(device)
    output = type(loaded.model(**loaded.inputs([[0]])))
    body = getattr(head, head.base_model_prefix).to("meta")
    for module in (body, getattr(body, "decoder", body)):  # OPT calls the one within.
        module.forward = lambda *_, inputs_embeds, **__: output(last_hidden_state=inputs_embeds)
    size = max(1, LOGITS_BYTES // (4 * len(head.get_output_embeddings().weight)))

    def lens(states: Tensor, at: Tensor, ids: Tensor) -> Tensor:
        at, ids = at.to(device), ids.to(device)
        logs = torch.empty(len(ids), device=device)
        for number, some in enumerate(torch.split(states, size)):
            inside = at // size == number
            some = some.to(device, DTYPES[loaded.dtype])
            some = loaded.anatomy.read_out(some[None]) if norm else some[None]
            logits = head(inputs_embeds=some).logits[0].float()
            logs[inside] = torch.log_softmax(logits, dim=-1)[at[inside] % size, ids[inside]]
        return logs

    return lens


def _head(loaded: LoadedModel) -> Any:
    """The language model around a loaded model, without its blocks."""
    from transformers import AutoConfig, AutoModelForCausalLM

    entry = loaded.entry
    location = locate(entry.source, loaded.revision)
    common = {"trust_remote_code": entry.trust_remote_code, **location.options()}
    headless = NoAnswersError(f"{loaded.name} has no unembedding in its files.")
    config = AutoConfig.from_pretrained(location.name, **common)
    text = config.get_text_config()
    text.num_hidden_layers = 0
    for kinds in {"layer_types", "layers_block_type"} & set(vars(text)):
        setattr(text, kinds, [])
    try:
        head, loading = AutoModelForCausalLM.from_pretrained(
            location.name,
            config=config,
            dtype=DTYPES[loaded.dtype],
            use_safetensors=True,
            output_loading_info=True,
            **common,
        )
    except ValueError as error:  # as transformers says that there is no such class
        raise headless from error
    unembedding = head.get_output_embeddings()
    if unembedding is None or loading["missing_keys"]:
        raise headless
    if text.tie_word_embeddings:
        # The loaded model's, which adapters may have changed; not moved with the head.
        tied = loaded.model.get_input_embeddings().weight  # type: ignore[operator]
        unembedding.weight = nn.Parameter(tied.data, requires_grad=False)
    return head.eval()


def _hands_out_last(loaded: LoadedModel) -> bool:
    """True if the model's output is its last block's states."""
    ways = [Representation(readout=readout) for readout in SCORED_READOUTS]
    last, output = embed(loaded, ["the quick brown fox jumps"], ways)[:, -1]
    return np.array_equal(last, output)


def likelihoods(
    loaded: LoadedModel, lens: Lens, answers: Sequence[Answer], budget: int | None
) -> Floats:
    """Log-likelihood of each answer at each layer, shape (layers, answers)."""
    values = np.zeros((loaded.anatomy.n_layers, len(answers)))
    if not answers:
        return values
    by_input: dict[tuple[int, ...], list[int]] = {}
    for number, one in enumerate(answers):
        by_input.setdefault(one.before, []).append(number)
    numbers = list(by_input.values())
    forward.run(
        loaded,
        list(by_input),
        lambda rows: _Batch(lens, answers, [numbers[row] for row in rows], values),
        budget=budget,
    )
    if not np.isfinite(values).all():
        raise loaded.not_finite(f"layer {np.argwhere(~np.isfinite(values))[0, 0]}, its lens")
    return values


class _Batch:
    """Log-likelihoods of the answers of one batch.

    Parameters
    ----------
    numbers : list of lists of int
        The answers of each row of the batch.
    values : array, shape (layers, answers)
        Filled when the pass is over.
    """

    def __init__(
        self,
        lens: Lens,
        answers: Sequence[Answer],
        numbers: list[list[int]],
        values: Floats,
    ) -> None:
        self.lens, self.values = lens, values
        # For each token of each answer: the state that predicts it, as its row in the batch and
        # its place in the row; the token; and the answer's number.
        states: list[tuple[int, int]] = []
        ids: list[int] = []
        self.of: list[int] = []
        for row, of_row in enumerate(numbers):
            for number in of_row:
                answer = answers[number]
                first = len(answer.before) - len(answer.ids)
                states += [(row, first + k) for k in range(len(answer.ids))]
                ids += answer.ids
                self.of += [number] * len(answer.ids)
        # Letters have one state in common.
        distinct, at = np.unique(np.array(states).T, axis=1, return_inverse=True)
        self.states, self.at = torch.tensor(distinct), torch.tensor(at.reshape(-1))
        self.ids = torch.tensor(ids)
        self.logs: dict[int, Tensor] = {}

    def take(self, layer: int, sublayer: str, packed: Packed, /) -> None:
        """Read one layer at the tokens before the answers'."""
        if sublayer != BLOCK:
            return
        rows, places = self.states.to(packed.states.device)
        states = packed.states if packed.streams is None else packed.streams
        self.logs[layer] = self.lens(states[rows, places], self.at, self.ids)

    def finish(self) -> None:
        """Add the tokens' log-likelihoods up."""
        for layer, logs in self.logs.items():
            np.add.at(self.values[layer], self.of, logs.double().cpu().numpy())
