"""The tables that golden values are compared with, computed by the library.

Only these modules import the library: a changed function changes its call here, and the files of
values stay. A case is a function without arguments that returns a table; its name starts with its
stage.
"""

import of_corpora  # noqa: F401  adds its cases, as the others do
import of_models  # noqa: F401
import of_scores  # noqa: F401
import of_tables  # noqa: F401
from cases import CASES

__all__ = ["CASES"]
