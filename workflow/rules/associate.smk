# Metrics against scores, study by study.


localrules:
    weights,


rule associate:
    input:
        tables=study_tables("metrics", "scores"),
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
    script:
        "../../scripts/associate_metrics.py"


rule select:
    input:
        tables=study_tables("metrics", "prompts", "scores"),
    output:
        selections="<results>/selections/{study}.parquet",
        summary="<results>/selections/{study}.csv",
    log:
        "<results>/logs/select/{study}.log",
    conda:
        ENVIRONMENT
    params:
        key=key("select"),
    message:
        "Selecting layers by metrics for {wildcards.study}"
    script:
        "../../scripts/select_layers.py"


rule weights:
    input:
        tables=lambda _: [PLAN.facts_tables[point] for point in PLAN.swept],
    output:
        "<results>/report/weights.csv",
    log:
        "<results>/logs/weights.log",
    conda:
        ENVIRONMENT
    params:
        key=key("weights"),
    message:
        "Comparing the weights of checkpoints"
    script:
        "../../scripts/compare_weights.py"
