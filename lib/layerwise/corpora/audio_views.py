"""Views of a recording: shift in time, gain and white noise, in turn.

The parameters of a view are drawn once and stored (`draw`); the view is made each time it is read
(`apply`), so that views take no room. The parameters depend on the seed, the recording's id and
bytes, the view's number and the settings, and on nothing else.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from layerwise.config.corpora import AudioViews
from layerwise.corpora.audio import Samples
from layerwise.io.files import sha256_text


def draw(recordings: pd.DataFrame, settings: AudioViews) -> pd.DataFrame:
    """Draw the parameters of the views of a corpus' recordings.

    Parameters
    ----------
    recordings : DataFrame
        Table of the corpus.

    Returns
    -------
    DataFrame
        Columns ``prompt_id``, ``view`` (1 … V) and ``drawn``, as JSON: ``shift`` as a share of the
        recording, ``gain`` in dB, ``snr`` in dB or null, and the ``seed`` of the noise.
    """
    rows = []
    for prompt_id, sha256 in zip(recordings["prompt_id"], recordings["sha256"], strict=True):
        for view in range(1, settings.n + 1):
            key = sha256_text("view", str(settings.seed), prompt_id, sha256, str(view))
            rng = np.random.default_rng(int(key[:32], 16))
            shift, gain, level = rng.uniform(size=3).tolist()
            low, high = settings.snr or (0.0, 0.0)
            record = {
                "shift": settings.shift * (2 * shift - 1),
                "gain": settings.gain * (2 * gain - 1),
                "snr": settings.snr and low + (high - low) * level,
                "seed": int(key[32:48], 16),
            }
            rows.append((prompt_id, view, json.dumps(record)))
    return pd.DataFrame(rows, columns=["prompt_id", "view", "drawn"])


def apply(samples: Samples, drawn: str) -> Samples:
    """Make a view of a recording.

    Parameters
    ----------
    samples : array, shape (n,)
    drawn : str
        Parameters, as `draw` gives them. The noise of a silent recording is silent.
    """
    record = json.loads(drawn)
    view = np.roll(samples, round(record["shift"] * len(samples)))
    view = view * np.float32(10 ** (record["gain"] / 20))
    if record["snr"] is not None:
        noise = np.random.default_rng(record["seed"]).standard_normal(len(view), np.float32)
        level = np.sqrt(np.mean(np.square(view, dtype=np.float64)) / 10 ** (record["snr"] / 10))
        view = view + np.float32(level) * noise
    return view
