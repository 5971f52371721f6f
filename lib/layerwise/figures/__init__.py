"""Figures of studies: each kind is a table of every number drawn, and a plot of that table."""
