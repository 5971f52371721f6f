# What the run has cost, by stage and model, for the report. Runs last.


localrules:
    account_run,


rule account_run:
    input:
        # Those that the run makes: the times of the others may be anything, as after a copy.
        lambda wildcards: START.files_of(filter(PLAN.needed, targets.targets(CONFIG))),
    output:
        report(
            f"{RESULTS}/report/account.csv",
            caption="../report/account.rst",
            category="Account",
            labels={"table": "cost by stage and model"},
        ),
    log:
        f"{RESULTS}/logs/account_run.log",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        command=[
            "python",
            f"{SCRIPTS}/account_run.py",
            "--results",
            RESULTS,
            "--output",
            f"{RESULTS}/report/account.csv",
        ],
    message:
        "Adding up what the run has cost"
    shell:
        RUN
