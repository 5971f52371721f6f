"""Compare the weights of checkpoints by the hashes in the tables made from them."""

from __future__ import annotations

from pathlib import Path

from layerwise.io.files import replacing
from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read the hashes, warn of equal ones, write the table."""
    from layerwise.models.checkpoints import compare

    found = compare(map(Path, arguments.plan.swept_tables))
    with replacing(arguments.output) as partial:
        found.to_csv(partial, index=False)


if __name__ == "__main__":
    script.run(main, script.parser(__doc__, stage="weights", output="CSV table to write"))
