# Metrics against scores, study by study.


localrules:
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
