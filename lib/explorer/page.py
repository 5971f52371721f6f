"""The explorer's page: tables packed into one HTML file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from explorer.gather import Curves, Explored

CODES = ((2**8, "<u1"), (2**16, "<u2"), (2**32, "<u4"))


def render(explored: Explored, title: str, *, key: str = "") -> str:
    """The page as HTML, which asks for nothing from anywhere.

    Parameters
    ----------
    title : str
        Heading of the page.
    key : str
        The key of the job that makes the page, stored in its head.
    """
    data = {"title": title} | {name: _packed(value) for name, value in vars(explored).items()}
    # No text of a name may end the element that holds it.
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    template, style, script = (
        Path(__file__).with_name(f"page.{kind}").read_text(encoding="utf-8")
        for kind in ("html", "css", "js")
    )
    page = (
        template.replace("/* style */", style, 1)
        .replace("/* script */", script, 1)
        .replace("/* data */", text.replace("<", "\\u003c"), 1)
    )
    return page.replace("<!-- key -->", f'<meta name="layerwise-key" content="{key}">', 1)


def _packed(value: Any) -> Any:
    if isinstance(value, Curves):
        return {name: pack(table) for name, table in vars(value).items()}
    return pack(value) if isinstance(value, pd.DataFrame) else value


def pack(table: pd.DataFrame) -> dict[str, Any]:
    """A table by columns, small and quick to read in a browser.

    Numbers with a fraction are float32, seven digits, in base64; all else is codes, in base64 too,
    into a list of the values that there are. A missing text is an empty one.

    Returns
    -------
    dict
        ``rows``, and ``columns``: of each ``type`` and ``data``, of codes ``values`` as well.
    """
    return {
        "rows": len(table),
        "columns": {str(name): _column(table[name]) for name in table.columns},
    }


def _column(column: pd.Series) -> dict[str, Any]:
    if pd.api.types.is_float_dtype(column) and not _whole(column):
        return {"type": "f4", "data": _text(column.to_numpy(dtype="<f4", na_value=np.nan))}
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        column = column.astype(object).where(column.notna(), "")
    codes, values = pd.factorize(column, use_na_sentinel=False)
    kind = next(name for most, name in CODES if len(values) <= most)
    plain = [None if pd.isna(v) else v.item() if isinstance(v, np.generic) else v for v in values]
    plain = [int(v) if isinstance(v, float) else v for v in plain]
    return {"type": kind[1:], "data": _text(codes.astype(kind)), "values": plain}


def _whole(column: pd.Series) -> bool:
    """True if all numbers are whole, and few."""
    numbers = column.dropna()
    return bool((numbers % 1 == 0).all()) and numbers.nunique() <= CODES[1][0]


def _text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
