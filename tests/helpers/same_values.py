"""Whether two runs of the workflow ended with the same values."""

from typing import Any

import numpy as np
import pandas as pd


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, pd.DataFrame):
            pd.testing.assert_frame_equal(found[name], value, obj=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
