"""Mamba-2 that reads in both directions, with the weights of one that reads in one.

Of the heads of each mixer, the first half scans from left to right and the second half from right
to left. So it has the parameters of the causal model, to the last one, and, unlike two scans that
share all weights and are added, can tell left from right. It costs a second scan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

MIXER = "Mamba2Mixer"


def scan_both_ways(mixer: nn.Module) -> None:
    """Make a Mamba-2 mixer scan in both directions, from now on.

    The scan's result is what the mixer hands its gated norm, where the half that was scanned from
    right to left is put in its place.
    """
    plain: Callable[..., Tensor] = mixer.forward
    norm: Any = mixer.norm
    sizes: Any = mixer
    half = sizes.num_heads // 2 * sizes.head_dim
    scanned: list[Tensor] = []

    def both(
        hidden_states: Tensor,
        cache_params: Any = None,  # noqa: ARG001  (one that saw the past alone is of no use)
        attention_mask: Any = None,
        **more: Any,
    ) -> Tensor:
        training = mixer.training
        mixer.training = False  # else a fused kernel may leave the norm out; nothing else asks
        keep = norm.register_forward_pre_hook(lambda _, args: scanned.append(args[0]))
        try:
            mask = None if attention_mask is None else attention_mask.flip(1)
            plain(hidden_states.flip(1), attention_mask=mask, **more)
        finally:
            keep.remove()
        back = scanned.pop().flip(1)

        def replace(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            forth = args[0].clone()
            forth[..., half:] = back[..., half:]
            return (forth, *args[1:])

        put = norm.register_forward_pre_hook(replace)
        try:
            return plain(hidden_states, attention_mask=attention_mask, **more)
        finally:
            put.remove()
            mixer.training = training

    mixer.forward = both  # type: ignore[method-assign,assignment]
