"""Judge an operator by all that torch, its compilers and its users may ask of it. README.md says how.

from lab.referee import Operator, judge
"""

from .judge import judge
from .operator import Operator, SpecError, load
from .report import Finding

__all__ = ["Finding", "Operator", "SpecError", "judge", "load"]
