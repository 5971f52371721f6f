"""Keep transformers' bars and advice out of logs; its errors still come as exceptions."""

from __future__ import annotations


def quiet() -> None:
    """Only errors from transformers, and no progress bars of its own."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
