# A study's figure and its table; the report.


rule figure:
    input:
        tables=study_tables(),
        stale=rerun_if_stale(
            "figure", "<results>/figures/{study}.png", "<results>/tables/{study}.csv"
        ),
    output:
        png=report(
            "<results>/figures/{study}.png",
            caption="../report/study.rst",
            category="Figures",
            labels={"study": "{study}", "as": "figure"},
        ),
        pdf="<results>/figures/{study}.pdf",
        caption="<results>/figures/{study}.rst",
        table=report(
            "<results>/tables/{study}.csv",
            caption="../report/study.rst",
            category="Tables",
            labels={"study": "{study}", "as": "table"},
        ),
    log:
        "<results>/logs/figure/{study}.log",
    conda:
        ENVIRONMENT
    params:
        key=key("figure"),
    message:
        "Drawing {wildcards.study}"
    shell:
        script(
            "draw_figure",
            "--study {wildcards.study:q} --png {output.png:q} --pdf {output.pdf:q} "
            "--caption {output.caption:q} --table {output.table:q}",
        )


rule best_layers:
    input:
        scores=lambda _: PLAN.score_files,
        stale=rerun_if_stale("best_layers", "<results>/report/best_layers.csv"),
    output:
        report(
            "<results>/report/best_layers.csv",
            caption="../report/best_layers.rst",
            category="Tables",
            labels={"table": "best layer of each model"},
        ),
    log:
        "<results>/logs/best_layers.log",
    conda:
        ENVIRONMENT
    params:
        key=key("best_layers"),
    message:
        "Finding each model's best layer"
    shell:
        script("find_best_layers", "--output {output:q}")


rule report:
    input:
        figures=lambda _: of_studies("figures", "png"),
        files=lambda _: of_studies("figures", "pdf"),
        captions=lambda _: of_studies("figures", "rst"),
        tables=lambda _: of_studies("tables", "csv"),
        corpora=lambda _: [PLAN.path("texts", corpus=c) for c in PLAN.corpora_read],
        scores=lambda _: PLAN.score_files,
        models=lambda _: [
            PLAN.facts_tables[m, names[-1]] for m, names in PLAN.revisions_read.items()
        ],
        best_layers=lambda _: report_table("best_layers", PLAN.scored),
        weights=lambda _: report_table("weights", PLAN.swept),
        stale=rerun_if_stale("report", "<results>/report.html"),
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
    shell:
        script("write_report", "--output {output:q}")
