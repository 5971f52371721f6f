"""Draw one study of the config: figure, table of what is drawn, caption.

python scripts/draw_study.py --study score_by_depth
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from layerwise import cli

log = logging.getLogger("layerwise")


def main(run: cli.Run) -> None:
    """Read, draw, write."""
    from layerwise import tables
    from layerwise.association.sources import with_text_sources
    from layerwise.figures import style
    from layerwise.figures.studies import Tables, draw
    from layerwise.files import replacing
    from layerwise.models.checkpoints import check_weights

    name = run.names["study"]
    check_weights(path for role in ("metrics", "scores") for path in run.inputs.get(role, []))
    read = {kind: tables.read(paths, kind) for kind, paths in run.inputs.items()}
    if "scores" in read:
        own = run.config.association.text_sources
        read["scores"] = with_text_sources(read["scores"], own)
    drawn = draw(
        run.config.studies[name],
        Tables(**read),
        run.order(),
        directions=run.config.association.directions,
        own_texts=run.own_texts(),
        labels=run.config.labels(),
    )
    log.info("%s: %s", name, drawn.title)
    note = mixed(run.stamp.recipe["versions"])
    if note:
        log.warning("%s: %s", name, note)
    tables.write_csv(run.files["table"], drawn.table)
    with replacing(run.files["caption"]) as partial:
        partial.write_text("\n".join(filter(None, [drawn.rst(), note])), encoding="utf-8")
    style.save(drawn.figure, run.files["png"], run.files["pdf"], run.stamp.facts())


def mixed(versions: Mapping[str, Sequence[str]]) -> str:
    """A sentence if what a figure shows was made by several versions of a library."""
    several = [f"{name} {' and '.join(v)}" for name, v in versions.items() if len(v) > 1]
    if not several:
        return ""
    return (
        f"What is shown was computed by several versions of {'; '.join(several)}; to have all of "
        "it made by the present ones, say `libraries: rerun` in the config.\n"
    )


if __name__ == "__main__":
    cli.run_job("draw_study", main, __doc__)
