"""Drop tokens and combine layers: modules for sentence-transformers, saved with a model.

Layers stand one under the other in the batch until `Combine`, so the modules in between treat them
alike.
"""

from typing import Any

import torch
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Transformer


class LayerStates(Transformer):
    """Give the token states of k layers of a transformer, shape (k B, T, D).

    Parameters
    ----------
    layers : list of int
        Ascending. Layer l is what block l + 1 receives; without such a block it is the model's
        output.
    blocks, final_norm : str
        Paths in the model; `final_norm` is applied to what blocks receive, and empty for none.
    """

    config_keys = [*Transformer.config_keys, "layers", "blocks", "final_norm"]  # noqa: RUF012

    def __init__(
        self, *args: Any, layers: list[int], blocks: str, final_norm: str, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.layers, self.blocks, self.final_norm = layers, blocks, final_norm

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        received: list[torch.Tensor | None] = []

        def keep(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            wanted = len(received) in self.layers
            states = args[0] if args else named["hidden_states"]
            received.append(states if wanted else None)

        # One block may run several times.
        blocks = dict.fromkeys(self.model.get_submodule(self.blocks))
        hooks = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in blocks]
        try:
            features = super().forward(features, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        norm = (
            self.model.get_submodule(self.final_norm) if self.final_norm else torch.nn.Identity()
        )
        states = [norm(one) for one in received if one is not None]
        if len(states) < len(self.layers):
            states.append(features["token_embeddings"])
        k = len(states)
        mask = features["attention_mask"].repeat(k, 1)
        return {**features, "token_embeddings": torch.cat(states), "attention_mask": mask}


class Combine(Module):
    """Average or concatenate the embeddings of k layers, shape (k B, D), to (B, D) or (B, k D)."""

    config_keys = ["n_layers", "combine", "hidden"]  # noqa: RUF012

    def __init__(self, n_layers: int, combine: str, hidden: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n_layers, self.combine, self.hidden = n_layers, combine, hidden

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        layers = features["sentence_embedding"].chunk(self.n_layers)
        together = (
            torch.cat(layers, dim=1) if self.combine == "concat" else torch.stack(layers).mean(0)
        )
        return {**features, "sentence_embedding": together}

    def get_embedding_dimension(self) -> int:
        return self.hidden * (self.n_layers if self.combine == "concat" else 1)

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.save_config(output_path)


class TokenChoice(Module):
    """Keep the selected tokens, moved to the front of each row.

    ``drop_first`` drops the first token, ``drop_sinks`` those whose norm is more than `sink_ratio`
    times the median norm of the text's tokens. A text without tokens left has the zero vector.
    """

    config_keys = ["tokens", "sink_ratio"]  # noqa: RUF012

    def __init__(self, tokens: str, sink_ratio: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tokens, self.sink_ratio = tokens, sink_ratio

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002
        states, keep = features["token_embeddings"], features["attention_mask"].bool()
        if self.tokens == "drop_first":
            rows = torch.arange(len(keep), device=keep.device)
            keep = keep.clone()
            keep[rows, keep.int().argmax(dim=1)] = False
        else:
            norms = torch.linalg.vector_norm(states.float(), dim=-1)
            median = norms.masked_fill(~keep, torch.nan).nanmedian(dim=1, keepdim=True).values
            keep = keep & (norms <= self.sink_ratio * median)
        order = torch.argsort(keep.logical_not().to(torch.uint8), dim=1, stable=True)
        mask = torch.gather(keep, 1, order)
        states = torch.gather(states, 1, order[..., None].expand_as(states)) * mask[..., None]
        # A text without tokens gets one zero state, because poolings divide by their number.
        mask[:, 0] = True
        return {**features, "token_embeddings": states, "attention_mask": mask.long()}

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.save_config(output_path)
