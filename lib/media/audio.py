"""A recording: its bytes, how they become samples, and its views.

Whatever a file holds becomes one channel of samples from -1 to 1: integers are divided by their
largest value, channels are averaged. scipy reads WAV; other formats need the package soundfile.
Damaged files, and values that are not finite, are refused.

Views are shifted in time, amplified and get white noise, in turn. The parameters of a view are
drawn once and stored (`draw_views`); the view is made each time it is read (`apply_view`), so that
views take no room. The parameters depend on the seed, the recording's id and bytes, the view's
number and the settings, and on nothing else.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from layerwise.errors import LayerwiseError, first_line
from layerwise.io.files import sha256_text
from layerwise.project import require
from media.settings import AudioCorpus, AudioViews
from media.sources import FileMedium, UnreadableError, read_file

Samples = npt.NDArray[np.float32]

# The first bytes of WAV, and of other formats that soundfile reads.
WAV = (b"RIFF", b"RIFX", b"RF64")
OTHERS = (b"fLaC", b"OggS", b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"FORM")
# The size in the header of a file that was written before its end was known.
UNKNOWN_SIZE = (0, 2**32 - 1)
# Samples a second; a damaged header can hold anything.
LEAST_RATE, MOST_RATE = 1_000, 1_000_000
# Largest shift of a view, as a share of the recording, and change of its level in dB.
SHIFT, GAIN = 0.1, 6.0


@dataclass(frozen=True)
class Recording(FileMedium):
    """A recording of a corpus, or a view of one; see `layerwise.corpora.prompts.Medium`."""

    kind = "recording"
    column = "audio"
    feature = "Audio"
    objects = "recordings as {'array': ..., 'sampling_rate': ...}"
    task_types = (
        "Any2AnyRetrieval",
        "AudioClassification",
        "AudioClustering",
        "AudioMultilabelClassification",
        "AudioPairClassification",
        "AudioReranking",
    )
    corpus = AudioCorpus
    suffixes = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff")

    def measures(self) -> dict[str, Any]:
        """Number of samples, and samples a second."""
        samples, rate = decode(self.data, self.name)
        return {"samples": len(samples), "rate": rate}

    @classmethod
    def draw_views(cls, table: pd.DataFrame, settings: AudioViews) -> pd.DataFrame:
        """As the function `draw_views`."""
        return draw_views(table, settings)

    @classmethod
    def of_object(cls, name: str, item: Any) -> Self | None:
        """A prompt of samples in memory, of a file's bytes, or of a path."""
        if isinstance(item, Mapping) and item.keys() >= {"array", "sampling_rate"}:
            return cls(name, wav(item["array"], int(item["sampling_rate"])))
        if isinstance(item, Mapping) and item.keys() >= {"bytes", "path"}:
            return cls(name, item["bytes"] or read_file(str(item["path"]), name))
        return super().of_object(name, item)

    @classmethod
    def undecoded(cls, data: Any, column: str) -> Any:
        """The data set with the bytes of its recordings: `datasets` needs torchcodec to decode
        them."""
        import datasets

        if isinstance(getattr(data, "features", {}).get(column), datasets.Audio):
            return data.cast_column(column, datasets.Audio(decode=False))
        return data

    @classmethod
    def reader_of(cls, config: Any) -> Any:
        """`media.models.Recordings`, for a model that takes waveforms or spectrograms."""
        from media.models import Recordings, takes_audio

        return Recordings if takes_audio(config) else None

    def samples(self, rate: int) -> Samples:
        """Return its samples at a rate, shape (n,); raises as `decode`."""
        samples, stored = decode(self.data, self.name)
        if self.drawn:
            samples = apply_view(samples, self.drawn)
        return resampled(samples, stored, rate)

    def n_samples(self, rate: int) -> int:
        """Number of its samples at a rate; raises as `decode`."""
        samples, stored = decode(self.data, self.name)
        return math.ceil(len(samples) * rate / stored)


def decode(data: bytes, name: str) -> tuple[Samples, int]:
    """Decode a file to samples, shape (n,), of one channel, and their number a second.

    Parameters
    ----------
    data : bytes
        WAV with whole or floating-point numbers, or a format that soundfile reads.
    name : str
        The recording's id, for errors.

    Raises
    ------
    UnreadableError
        If it is damaged, cut off or no recording.
    LayerwiseError
        If soundfile is needed and not installed.
    """
    try:
        if data.startswith(WAV):
            rate, values = _read_wav(data)
        elif data.startswith(OTHERS):
            soundfile = require("soundfile", "audio")
            values, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        else:
            raise ValueError("it is no WAV, FLAC, Ogg, MP3 or AIFF")
        if values.dtype.kind == "u":
            values = (values.astype(np.float32) - 128) / 128
        elif values.dtype.kind == "i":
            values = values / -float(np.iinfo(values.dtype).min)
        samples = values.reshape(len(values), -1).mean(axis=1, dtype=np.float64)
        samples = samples.astype(np.float32)
        if not len(samples) or not np.isfinite(samples).all():
            raise ValueError("it has no samples, or NaN or infinity among them")
        if not LEAST_RATE <= rate <= MOST_RATE:
            raise ValueError(f"it has {rate} samples a second")
    except (MemoryError, LayerwiseError):
        raise
    except Exception as error:  # a damaged file fails in any way in the readers
        raise UnreadableError(
            f"The recording {name!r} cannot be read ({first_line(error)}); fetch or copy it "
            "again, convert it to WAV, or set damaged: drop."
        ) from error
    return samples, int(rate)


def _read_wav(data: bytes) -> tuple[int, Any]:
    order = "big" if data.startswith(b"RIFX") else "little"
    size = int.from_bytes(data[4:8], order)  # type: ignore[arg-type]
    if size not in UNKNOWN_SIZE and size + 8 > len(data):
        raise ValueError(f"it has {len(data)} of {size + 8} bytes")
    from scipy.io import wavfile

    # Of chunks that hold no sound, such as titles. For good, as other threads read files, too.
    warnings.simplefilter("ignore", wavfile.WavFileWarning)
    rate, values = wavfile.read(io.BytesIO(data))
    return int(rate), values


def resampled(samples: Samples, rate: int, to: int) -> Samples:
    """Resample with a low-pass filter (scipy's polyphase), shape (⌈n to / rate⌉,)."""
    if rate == to:
        return samples
    from scipy.signal import resample_poly

    common = math.gcd(rate, to)
    return np.asarray(resample_poly(samples, to // common, rate // common), np.float32)


def wav(samples: Any, rate: int) -> bytes:
    """Encode samples, shape (n,) or (n, channels), as a WAV file that keeps their type."""
    from scipy.io import wavfile

    file = io.BytesIO()
    wavfile.write(file, rate, np.asarray(samples))
    return file.getvalue()


def draw_views(recordings: pd.DataFrame, settings: AudioViews) -> pd.DataFrame:
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
            key = sha256_text("view", "0", prompt_id, sha256, str(view))
            rng = np.random.default_rng(int(key[:32], 16))
            shift, gain, level = rng.uniform(size=3).tolist()
            low, high = settings.snr or (0.0, 0.0)
            record = {
                "shift": SHIFT * (2 * shift - 1),
                "gain": GAIN * (2 * gain - 1),
                "snr": settings.snr and low + (high - low) * level,
                "seed": int(key[32:48], 16),
            }
            rows.append((prompt_id, view, json.dumps(record)))
    return pd.DataFrame(rows, columns=["prompt_id", "view", "drawn"])


def apply_view(samples: Samples, drawn: str) -> Samples:
    """Make a view of a recording.

    Parameters
    ----------
    samples : array, shape (n,)
    drawn : str
        Parameters, as `draw_views` gives them. The noise of a silent recording is silent.
    """
    record = json.loads(drawn)
    view = np.roll(samples, round(record["shift"] * len(samples)))
    view = view * np.float32(10 ** (record["gain"] / 20))
    if record["snr"] is not None:
        noise = np.random.default_rng(record["seed"]).standard_normal(len(view), np.float32)
        level = np.sqrt(np.mean(np.square(view, dtype=np.float64)) / 10 ** (record["snr"] / 10))
        view = view + np.float32(level) * noise
    return view
