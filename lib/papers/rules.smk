# Tables that others published, and the similarity of layers.


localrules:
    import_published,


def published_files(wildcards):
    """The tables of other work that a study draws."""
    entry = CONFIG.published[decode(wildcards.published)]
    return [path for path in (entry.scores, entry.metrics) if path]


rule similarity:
    input:
        activations=study_tables("activations"),
    output:
        update("<results>/similarities/{study}.parquet"),
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
    script:
        "compare_layers.py"


rule import_published:
    input:
        published_files,
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
    script:
        "import_published.py"
