# What the run has cost, by stage and model, for the report. Runs last.


localrules:
    account_run,


def results_to_be_made(wildcards):
    """Not those that are there: their times may be anything, as after a copy."""
    return START.files_of(filter(PLAN.needed, targets.targets(CONFIG)))


rule account_run:
    input:
        results_to_be_made,
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
