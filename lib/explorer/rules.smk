# The explorer: any metric and score of the run in one page.

from explorer.stage import explored


rule explore:
    input:
        lambda _: [
            path
            for tables in explored(PLAN).values()
            for paths in tables.values()
            for path in paths
        ],
    output:
        "<results>/explore.html",
    log:
        "<results>/logs/explore.log",
    conda:
        ENVIRONMENT
    params:
        key=key("explore"),
    message:
        "Building the explorer"
    script:
        "build.py"
