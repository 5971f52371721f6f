"""Hidden states that another program computed, in place of a model.

A pass hands over the given states, as if blocks had made them. All that reads states works; what
needs a tokenizer, weights or another text is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from layerwise.errors import LayerwiseError, first_line
from layerwise.models.architectures import Anatomy
from layerwise.models.source import STATES

log = logging.getLogger(__name__)

KIND: Final = "states"
# The states of each token of a text, shape (layers, D).
Prompt = tuple[npt.NDArray[Any], ...]


class States:
    """States of each layer for some texts.

    Parameters
    ----------
    states : array, shape (layers, texts, D), or sequence of arrays, shape (layers, T, D)
        One vector a text, or the states of each text's T tokens. Layers are in order, the
        embedding output first.
    texts : sequence of str
        The texts, without repetition.

    Raises
    ------
    LayerwiseError
        If shapes differ, values are no floating-point numbers or not finite, a text is there
        twice, or a text is zero at every layer.

    Examples
    --------
    >>> import numpy as np
    >>> import layerwise as lw
    >>> texts = [f"protein {n}" for n in range(40)]
    >>> states = np.random.default_rng(0).normal(size=(3, 40, 8))
    >>> table = lw.analyse(lw.States(states, texts), texts, metrics="rankme")
    >>> table["layer"].tolist()
    [0, 1, 2]
    """

    takes = "text"
    device = torch.device("cpu")

    def __init__(self, states: Any, texts: Sequence[str], *, name: str = KIND) -> None:
        self.name, self.texts = name, list(texts)
        self.rows = {text: row for row, text in enumerate(self.texts)}
        if len(self.rows) < len(self.texts):
            raise self._bad("a text is there twice")
        whole = getattr(states, "ndim", None) == 3
        tokens = [_array(one) for one in (np.moveaxis(_array(states), 1, 0) if whole else states)]
        tokens = [one[:, None] if whole else one for one in tokens]
        if len(tokens) != len(self.texts) or not tokens:
            raise self._bad(f"{len(tokens)} texts have states, and {len(self.texts)} are named")
        shapes = {(one.shape[0], one.shape[-1]) for one in tokens if one.ndim == 3 and one.size}
        if len(shapes) != 1 or any(one.ndim != 3 or not one.size for one in tokens):
            raise self._bad(
                "expected an array (layers, texts, D), or an array (layers, T, D) for each text"
            )
        kinds = {one.dtype.kind for one in tokens}
        if kinds & {"i", "u"}:
            raise self._bad(
                "expected floating-point numbers, got integers, which may be the bits of a "
                "type that the program does not have, such as bfloat16, so convert them"
            )
        if kinds != {"f"}:
            raise self._bad("expected real numbers")
        if not all(np.isfinite(one).all() for one in tokens):
            raise self._bad("some values are NaN or infinite")
        empty = [t for t, one in zip(self.texts, tokens, strict=True) if not one.any()]
        if empty:
            raise self._bad(
                f"{len(empty)} of {len(tokens)} texts are zero at every layer, as if unwritten "
                f"(such as {empty[0][:60]!r}); write their states, or leave the texts out"
            )
        self.tokens = tokens
        ((self.n_layers, self.hidden),) = shapes
        if self.n_layers > self.hidden:
            log.warning(
                "%s: %d layers of %d dimensions; the axes are (layers, texts, D), and programs "
                "that store columns first reverse them",
                name,
                self.n_layers,
                self.hidden,
            )
        self.of_tokens = not whole
        self.max_length = max(one.shape[1] for one in tokens)

    @classmethod
    def read(cls, path: Path) -> States:
        """Read states from a file.

        Parameters
        ----------
        path : Path
            HDF5 or safetensors with ``states``, shape (layers, texts, D), and the ``texts``: a
            data set of strings, or a JSON list in the metadata of safetensors. With ``offsets``,
            shape (texts + 1,), ``states`` has the shape (layers, tokens, D), and text i has the
            tokens ``offsets[i]`` up to ``offsets[i + 1]``.

        Raises
        ------
        LayerwiseError
            If the file is missing, of another type or damaged, or lacks one of these.
        """
        if path.suffix not in STATES:
            raise _unreadable(path, f"it is no file of type {', '.join(STATES)}")
        try:
            contents = _contents(path)
            states, texts = contents["states"], contents["texts"]
        except KeyError as error:
            raise _unreadable(path, f"it has no {error.args[0]}") from error
        except Exception as error:  # h5py and safetensors fail in many ways on damaged files
            raise _unreadable(path, first_line(error)) from error
        if "offsets" not in contents:
            return cls(states, texts, name=path.name)
        bounds = contents["offsets"].tolist()
        if contents["offsets"].dtype.kind not in "iu":
            raise _unreadable(path, "offsets have to be whole numbers")
        if bounds[:1] != [0] or bounds[-1:] != [states.shape[1]] or sorted(bounds) != bounds:
            raise _unreadable(path, "offsets have to rise from 0 to the number of tokens")
        tokens = [states[:, start:stop] for start, stop in pairwise(bounds)]
        return cls(tokens, texts, name=path.name)

    def anatomy(self) -> Anatomy:
        """An anatomy with as many blocks, of which none is run."""
        blocks = tuple(nn.Identity() for _ in range(self.n_layers - 1))
        return Anatomy(KIND, "", blocks, nn.Identity(), self.hidden)

    def prompts(self, texts: Sequence[str]) -> tuple[list[Prompt], list[int]]:
        """The states of each text, and the number of tokens cut off each: none.

        Raises
        ------
        LayerwiseError
            If a text has no states.
        """
        unknown = [text for text in texts if text not in self.rows]
        if unknown:
            raise LayerwiseError(
                f"{self.name} has no states of {len(unknown)} of {len(texts)} texts (such as "
                f"{str(unknown[0])[:60]!r}); compute them with the program that made the others, "
                "or, if these are views, set views: {n: 0} for the corpus.",
                code="missing",
            )
        states = (self.tokens[self.rows[text]].swapaxes(0, 1) for text in texts)
        return [tuple(of_tokens) for of_tokens in states], [0] * len(texts)

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """The states of a batch, shape (layers, B, T, D), padded on the right."""
        rows = [torch.from_numpy(np.stack(prompt).astype(np.float32)) for prompt in prompts]
        return {"states": pad_sequence(rows, batch_first=True).permute(2, 0, 1, 3).contiguous()}

    def facts(self) -> dict[str, Any]:
        """Settings of the inputs, for the file's record."""
        return {"max_length": self.max_length, "lacks": " ".join(sorted(self.lacks))}

    @property
    def lacks(self) -> frozenset[str]:
        """What metrics may need and these states cannot give."""
        return frozenset({"first_token_attention"} | (set() if self.of_tokens else {"tokens"}))

    def sha256(self) -> str:
        """SHA-256 of all values, as that of a model's weights."""
        digest = hashlib.sha256()
        for one in self.tokens:
            digest.update(f"{one.shape} {one.dtype};".encode())
            digest.update(np.ascontiguousarray(one).data)
        return digest.hexdigest()

    def _bad(self, why: str) -> LayerwiseError:
        return LayerwiseError(f"states: {self.name}: {why}.", code="wrong_shape")


def _contents(path: Path) -> dict[str, Any]:
    """States, texts and offsets of a file, as far as it has them."""
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            about, names = file.metadata() or {}, file.keys()
            texts = {"texts": json.loads(about["texts"])} if "texts" in about else {}
            return texts | {name: _array(file.get_tensor(name)) for name in names}
    import h5py

    with h5py.File(path, locking=False) as file:
        arrays = {name: file[name][:] for name in ("states", "offsets") if name in file}
        texts = {"texts": file["texts"].asstr()[:].tolist()} if "texts" in file else {}
        return arrays | texts


def _array(states: Any) -> npt.NDArray[Any]:
    if isinstance(states, Tensor):  # numpy has no bfloat16
        states = states.detach().cpu()
        states = states.float() if states.dtype == torch.bfloat16 else states
    return np.asarray(states)


def _unreadable(path: Path, why: str) -> LayerwiseError:
    return LayerwiseError(
        f"{path} cannot be read as states: {why}; write it as docs/your-states.md says.",
        code="unreadable",
    )


def is_array(what: Any) -> bool:
    """True for an array of three dimensions, or a list of them: states without their texts."""
    first = what[0] if isinstance(what, list | tuple) and what else what
    return getattr(first, "ndim", None) == 3
