"""Loads the part of array-api-tests that takes it for granted, in two lines, that there are complex numbers, where there are none."""

import builtins

_max = builtins.max


def _max_or_none(*args, **kwargs):
    return _max(*args, **kwargs) if len(args) != 1 or kwargs.keys() != {"key"} or args[0] else (None, 0)


builtins.max = _max_or_none
try:
    import array_api_tests.dtype_helpers as helpers
finally:
    builtins.max = _max
helpers.widest_complex_dtype = helpers.widest_real_dtype
