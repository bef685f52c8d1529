"""Does a message match?"""

from .tags import matches as matches
from .tags import parse_tags as parse_tags
