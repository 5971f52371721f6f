"""Drop tokens: a module for sentence-transformers, saved with a model."""

from typing import Any

import torch
from sentence_transformers.base.modules.module import Module


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
