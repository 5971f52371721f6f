"""Claims of both papers, each with the numbers that their authors released about it.

A claim is a decorated function: the decorator holds its text, its place in the paper and the
condition under which a number supports it; the function yields the numbers.
"""
