"""Does a message match?"""

from .sql92 import SQL92 as SQL92
from .sql92 import SqlExpression as SqlExpression
from .tags import matches as matches
from .tags import parse_tags as parse_tags
