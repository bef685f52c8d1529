"""Checkers: each takes a story and adds what it finds. All are linear, or sort once.

set        is everything there that was acknowledged, once, as it was sent?
order      did producers' and readers' order hold?
offsets    does an offset mean one message, and does progress only grow?
appends    are appends linearizable?
locks      was each lock held by one client at a time?
delivery   did messages for later come at their time?
replicas   do all replicas tell the same story?
retries    were failing messages tried as often as configured?
"""

from collections.abc import Callable
from typing import Final

from ..anomalies import Anomalies
from ..story import Story
from .appends import check_appends
from .delivery import check_delivery
from .locks import check_locks
from .offsets import check_offsets
from .order import check_order
from .replicas import check_replicas
from .retries import check_retries
from .sets import check_sets

CHECKERS: Final[dict[str, Callable[[Story, Anomalies], None]]] = {
    "set": check_sets,
    "order": check_order,
    "offsets": check_offsets,
    "appends": check_appends,
    "locks": check_locks,
    "delivery": check_delivery,
    "replicas": check_replicas,
    "retries": check_retries,
}

__all__ = ["CHECKERS"]
