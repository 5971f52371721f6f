"""Fetch all models, corpora and tasks of a config into the local caches."""

from __future__ import annotations

from layerwise.workflow import script


def main(arguments: script.Arguments) -> None:
    """Fetch what the config takes from the hub; what is in the caches is not fetched again."""
    from layerwise.workflow.fetch import fetch_all

    fetch_all(arguments.config)


if __name__ == "__main__":
    script.run(main, script.parser(__doc__))
