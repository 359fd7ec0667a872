"""The distribution `plimsoll` of PyPI is another project, whose package has our package's name."""

import os
import warnings


def warn_of_others(folder):
    """Warns where the other distribution is installed in the folder of ours: each has overwritten files of the other's."""
    others = [name for name in os.listdir(folder) if name.startswith("plimsoll-") and name.endswith((".dist-info", ".egg-info"))]
    if others:
        warnings.warn(
            f"{folder} has the distribution plimsoll ({others[0]}) beside plimsoll-ml, and both have a package plimsoll; pip uninstall both, "
            "then pip install plimsoll-ml",
            RuntimeWarning,
            stacklevel=3,
        )
