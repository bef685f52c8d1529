"""Types of the compiled twin; its functions are specified in sums.py."""

from .sums import check_sums as check_sums
from .sums import sum_records as sum_records

def bind(sum_check: type) -> None: ...
