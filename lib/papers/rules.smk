# Tables that others published, and the similarity of layers.


localrules:
    import_published,


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
        lambda wildcards: PLAN.published_files(decode(wildcards.published)),
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
