"""Silence progress bars and advice of transformers."""

from __future__ import annotations


def quiet() -> None:
    """Show only errors of transformers, and no progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
