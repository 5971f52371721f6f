"""The explorer: one page that draws any metric and score of a run, and needs nothing else."""
