"""Whether "a multiple of n" in a grammar can be afforded.

llguidance makes a state for every remainder before it counts anything: n = 4,999,999 took 75 s and
2.7 GB, and none of its limits applies. So what may be asked for is bounded here, by the text alone.
Zeros at the end of a number cost nothing: a multiple of 1000 is as cheap as one of 0.001.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

# So many take half a second and 40 MB.
_MOST_REMAINDERS = 100_000

_ESCAPED = re.compile(r"\\u00([0-9a-fA-F]{2})")
_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*([0-9.eE+-]+)')


def too_many_remainders(text: str) -> bool:
    """Of a JSON schema, or of a grammar that may have schemas in it."""
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    counts = [_remainders(found) for found in _MULTIPLE.findall(plain)]
    # Several may apply to one number (allOf, anyOf, $ref, patternProperties …), whose remainders
    # are then counted together. Which do is not looked for: numbers in use have small multiples.
    return sum(counts) > _MOST_REMAINDERS or math.lcm(*counts) > _MOST_REMAINDERS


def _remainders(number: str) -> int:
    """How many there are; 1 for what is no number, which is refused elsewhere."""
    try:
        digits = Decimal(number).as_tuple().digits
    except InvalidOperation:
        return 1
    counted = "".join(map(str, digits)).rstrip("0")
    # Longer ones are too many whatever they are.
    return max(1, int(counted[:20] or "0"))
