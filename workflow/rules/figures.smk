# A study's figure and its table; the report.


rule figure:
    input:
        tables=study_tables(),
    output:
        png="<results>/figures/{study}.png",
        pdf="<results>/figures/{study}.pdf",
        caption="<results>/figures/{study}.rst",
        table="<results>/tables/{study}.csv",
    log:
        "<results>/logs/figure/{study}.log",
    conda:
        ENVIRONMENT
    params:
        key=key("figure"),
    message:
        "Drawing {wildcards.study}"
    script:
        "../../scripts/draw_figure.py"


rule best_layers:
    input:
        scores=lambda _: PLAN.score_files,
    output:
        "<results>/report/best_layers.csv",
    log:
        "<results>/logs/best_layers.log",
    conda:
        ENVIRONMENT
    params:
        key=key("best_layers"),
    message:
        "Finding each model's best layer"
    script:
        "../../scripts/find_best_layers.py"


rule report:
    input:
        figures=expand("<results>/figures/{study}.png", study=STUDIES),
        files=expand("<results>/figures/{study}.pdf", study=STUDIES),
        captions=expand("<results>/figures/{study}.rst", study=STUDIES),
        tables=expand("<results>/tables/{study}.csv", study=STUDIES),
        corpora=lambda _: [PLAN.path("texts", corpus=c) for c in PLAN.corpora_read],
        scores=lambda _: PLAN.score_files,
        models=lambda _: [
            PLAN.facts_tables[m, names[-1]] for m, names in PLAN.revisions_read.items()
        ],
        best_layers=lambda _: report_table("best_layers", PLAN.scored),
        weights=lambda _: report_table("weights", PLAN.swept),
    output:
        "<results>/report.html",
    log:
        "<results>/logs/report.log",
    conda:
        ENVIRONMENT
    params:
        key=key("report"),
    message:
        "Writing the report"
    script:
        "../../scripts/write_report.py"
