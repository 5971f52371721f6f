"""Associate metrics with task scores over the layers of each model of a study."""

from __future__ import annotations

from layerwise.run import script


def main(arguments: script.Arguments) -> None:
    """Read the tables, associate, write."""
    from layerwise.association.table import associate
    from layerwise.io import tables
    from layerwise.run.results import Results

    config, results = arguments.config, Results.of(arguments.plan)
    study = arguments.plan.studies[arguments.study]
    settings = config.association.model_copy(update={"own_texts": config.own_texts})
    metrics, scores = (results.of_study(study, table) for table in ("metrics", "scores"))
    found = associate(metrics, scores, settings, results.order(), study.study.over)
    tables.write(arguments.output, found, key=arguments.key)


if __name__ == "__main__":
    script.run(
        main,
        script.parser(
            __doc__, "study", stage="associate", output="table of associations to write"
        ),
    )
