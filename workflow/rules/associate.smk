# Metrics against scores, study by study, and published tables.


localrules:
    import_published,
    weights,


rule associate:
    input:
        tables=study_tables("metrics", "scores"),
        stale=rerun_if_stale("associate", "<results>/associations/{study}.parquet"),
    output:
        "<results>/associations/{study}.parquet",
    log:
        "<results>/logs/associate/{study}.log",
    conda:
        ENVIRONMENT
    params:
        key=key("associate"),
    message:
        "Associating metrics with scores for {wildcards.study}"
    shell:
        script("associate_metrics", "--study {wildcards.study:q} --output {output:q}")


rule select:
    input:
        tables=study_tables("metrics", "prompts", "scores"),
        stale=rerun_if_stale(
            "select",
            "<results>/selections/{study}.parquet",
            "<results>/selections/{study}.csv",
        ),
    output:
        selections="<results>/selections/{study}.parquet",
        summary=report(
            "<results>/selections/{study}.csv",
            caption="../report/selections.rst",
            category="Tables",
            labels={"study": "{study}", "as": "layers selected by each metric"},
        ),
    log:
        "<results>/logs/select/{study}.log",
    conda:
        ENVIRONMENT
    params:
        key=key("select"),
    message:
        "Selecting layers by metrics for {wildcards.study}"
    shell:
        script(
            "select_layers",
            "--study {wildcards.study:q} --output {output.selections:q} "
            "--summary {output.summary:q}",
        )


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
        script("compare_layers", "--study {wildcards.study:q} --output {output:q}")


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
            "import_published",
            "--published {wildcards.published:q} --scores {output.scores:q} "
            "--metrics {output.metrics:q}",
        )


rule weights:
    input:
        tables=lambda _: [PLAN.facts_tables[point] for point in PLAN.swept],
        stale=rerun_if_stale("weights", "<results>/report/weights.csv"),
    output:
        report(
            "<results>/report/weights.csv",
            caption="../report/weights.rst",
            category="Models",
            labels={"table": "weights of each checkpoint"},
        ),
    log:
        "<results>/logs/weights.log",
    conda:
        ENVIRONMENT
    params:
        key=key("weights"),
    message:
        "Comparing the weights of checkpoints"
    shell:
        script("compare_weights", "--output {output:q}")
