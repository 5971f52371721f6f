"""Small vision models trained on the spot: one that predicts the next pixel, one that fills in.

As ImageGPT (Chen et al. 2020) and the masked autoencoder (He et al. 2022), at one size and on the
same images, each pixel a token. Saved as ordinary Hugging Face folders with an image processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerwise.config.models import Nano
from layerwise.corpora.images import Picture
from layerwise.errors import LayerwiseError
from layerwise.models.nano import HELD_OUT, check_steps, fit
from layerwise.models.quiet import quiet

# As in the paper of masked autoencoders: so many of the patches are hidden.
HIDDEN = 0.75


def train(
    pictures: Sequence[Picture], settings: Nano, steps: Sequence[int], folders: Mapping[int, Path]
) -> list[dict[str, float]]:
    """Train a vision model and save it at the given steps.

    Parameters
    ----------
    pictures : sequence of Picture
        Scaled to ``settings.side`` pixels a side.
    settings, steps, folders
        As `layerwise.models.nano.train` takes them. Of ``vocabulary`` colours at most each pixel
        is one for ``imagegpt``: all that there are, or the middles of so many clusters.

    Returns
    -------
    list of dict
        As of `layerwise.models.nano.train`; losses are nats a pixel, or of ``vit_mae`` the mean
        square of the hidden patches' normalised pixels.

    Raises
    ------
    LayerwiseError
        If a step lies beyond ``train_steps`` or there are too few images.
    """
    check_steps(settings, steps)
    quiet()
    if len(pictures) < HELD_OUT + settings.batch:
        raise LayerwiseError(
            f"The corpus has {len(pictures)} images; training needs at least "
            f"{HELD_OUT + settings.batch}. Raise its sample.n, or lower nano.….batch."
        )
    side = settings.side
    images = [p.pixels().resize((side, side), 3) for p in pictures]
    torch.manual_seed(settings.seed)
    made = _imagegpt if settings.architecture == "imagegpt" else _mae
    model, processor, data, loss = made(images, settings)

    def held_out_loss(windows: Tensor) -> float:
        # manual_seed seeds the GPU too.
        devices = [torch.cuda.current_device()] if settings.device == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(0)  # the same patches hidden each time
            return float(loss(model, windows))

    return fit(
        model, data, settings, steps, folders, loss=loss, held_out_loss=held_out_loss,
        save=processor.save_pretrained, unit="a pixel",
    )  # fmt: skip


def _imagegpt(images: Sequence[Any], settings: Nano) -> tuple[Any, Any, Tensor, Any]:
    from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling
    from transformers import ImageGPTImageProcessorPil as Processor

    side = settings.side
    pixels = np.stack([np.asarray(image) for image in images]).reshape(-1, 3)
    colours = _colours(pixels, settings) / 127.5 - 1
    size = {"height": side, "width": side}
    processor = Processor(clusters=colours.tolist(), size=size, resample=3)
    data = processor(images=list(images), return_tensors="pt")["input_ids"].long()
    start = len(colours)
    model = ImageGPTForCausalImageModeling(
        ImageGPTConfig(
            vocab_size=len(colours) + 1,
            n_positions=side * side,
            n_embd=settings.hidden,
            n_layer=settings.layers,
            n_head=settings.hidden // 16,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )

    def loss(model: Any, batch: Tensor) -> Tensor:
        first = torch.full((len(batch), 1), start, device=batch.device)
        seen = torch.cat([first, batch[:, :-1]], dim=1)
        logits = model(input_ids=seen, use_cache=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch.flatten())

    return model, processor, data, loss


def _colours(pixels: Any, settings: Nano) -> Any:
    """The colours that a pixel may have, shape (K, 3), 0 to 255."""
    distinct = np.unique(pixels, axis=0)
    if len(distinct) <= settings.vocabulary:
        return distinct.astype(float)
    from sklearn.cluster import MiniBatchKMeans

    clusters = MiniBatchKMeans(settings.vocabulary, random_state=settings.seed, n_init=1)
    return clusters.fit(pixels.astype(float)).cluster_centers_


def _mae(images: Sequence[Any], settings: Nano) -> tuple[Any, Any, Tensor, Any]:
    from transformers import ViTImageProcessorPil, ViTMAEConfig, ViTMAEForPreTraining

    side, hidden = settings.side, settings.hidden
    heads = hidden // 16
    processor = ViTImageProcessorPil(size={"height": side, "width": side}, resample=3)
    data = processor(images=list(images), return_tensors="pt")["pixel_values"]
    model = ViTMAEForPreTraining(
        ViTMAEConfig(
            hidden_size=hidden,
            num_hidden_layers=settings.layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            image_size=side,
            patch_size=1,
            decoder_hidden_size=hidden,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=heads,
            decoder_intermediate_size=4 * hidden,
            mask_ratio=HIDDEN,
        )
    )
    _start(model, side)

    def loss(model: Any, batch: Tensor) -> Tensor:
        found: Tensor = model(pixel_values=batch).loss
        return found

    return model, processor, data, loss


def _start(model: Any, side: int) -> None:
    """Give a masked autoencoder the weights that its paper starts from.

    transformers (5.23) makes a new model with positions of zero, which are not trained, so that it
    could not tell one pixel from another; and with weights of 0.02 where the paper has Xavier's,
    under which a pixel hardly shows beside its position.
    """
    from transformers.models.vit_mae.modeling_vit_mae import (
        build_2d_sinusoidal_position_embedding as sinusoids,
    )

    encoder, decoder, config = model.vit.embeddings, model.decoder, model.config
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for weight in (*linear, encoder.patch_embeddings.projection.weight.flatten(1)):
            nn.init.xavier_uniform_(weight)
        for positions in (encoder.position_embeddings, decoder.decoder_pos_embed):
            wide = positions.shape[-1]
            # Waves as long as the image at most, in place of 10,000, which few frequencies show.
            positions.copy_(
                sinusoids(
                    height=side, width=side, embed_dim=wide, cls_token=True, temperature=side
                )
            )
        for token in (encoder.cls_token, decoder.mask_token):
            token.normal_(std=config.initializer_range)
