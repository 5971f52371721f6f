"""Extract the paragraphs of the Wikipedia slice in gensim's test data, free of markup."""

from __future__ import annotations

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read the dump and write the table of paragraphs."""
    from layerwise.corpora.wikipedia import unpack

    unpack(arguments.output, key=arguments.key)


if __name__ == "__main__":
    script.run(
        main, script.parser(__doc__, stage="wikipedia", output="table of paragraphs to write")
    )
