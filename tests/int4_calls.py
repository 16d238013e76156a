"""The structs of examples/int4_linear that launchers take, for ctypes; test_int4_plan.py compares them with C++."""

import ctypes
from ctypes import c_bool, c_double, c_float, c_int, c_void_p


class Plan(ctypes.Structure):
    """Plan in plan.h."""

    _fields_ = [("shape", c_int), ("splits", c_int), ("unsplit", c_int), ("batch", c_int), ("us", c_double)]


class Int4Call(ctypes.Structure):
    """Int4Call in int4_linear.h."""

    _fields_ = [("packed", c_void_p), ("scale", c_void_p), ("zero", c_void_p), ("n", c_int), ("k", c_int)]
    _fields_ += [("is_float16", c_bool), ("is_gated", c_bool)]
    _fields_ += [("y", c_void_p), ("x", c_void_p), ("bias", c_void_p), ("batch", c_int)]
    _fields_ += [("squares", c_void_p), ("eps", c_float), ("residual", c_void_p), ("norm_weight", c_void_p)]
    _fields_ += [("weighted", c_void_p), ("next_squares", c_void_p)]
