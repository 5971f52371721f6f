# Tables that others published, and the similarity of layers.

import papers

PAPERS = Path(papers.__file__).parent


localrules:
    import_published,


def published_files(wildcards):
    """The tables of other work that a study draws."""
    entry = CONFIG.published[decode(wildcards.published)]
    return [path for path in (entry.scores, entry.metrics) if path]


rule similarity:
    input:
        activations=study_tables("activations"),
        stale=rerun_if_stale("similarity", "<results>/similarities/{study}.parquet"),
    output:
        replaced("<results>/similarities/{study}.parquet"),
    log:
        "<results>/logs/similarity/{study}.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=lambda wildcards, attempt: 6000 * attempt,
    params:
        key=key("similarity"),
    message:
        "Comparing layers by CKA and RSA for {wildcards.study}"
    shell:
        script(
            PAPERS / "compare_layers",
            "--study {wildcards.study:q} --output {output:q}",
        )


rule import_published:
    input:
        published_files,
        stale=rerun_if_stale(
            "published", "<results>/published/{published}.metrics.parquet"
        ),
    output:
        scores="<results>/published/{published}.scores.parquet",
        metrics="<results>/published/{published}.metrics.parquet",
    log:
        "<results>/logs/published/{published}.log",
    conda:
        ENVIRONMENT
    params:
        key=key("published"),
    message:
        "Importing the published tables {wildcards.published}"
    shell:
        script(
            PAPERS / "import_published",
            "--published {wildcards.published:q} --scores {output.scores:q} "
            "--metrics {output.metrics:q}",
        )
