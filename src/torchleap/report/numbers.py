"""How numbers are written: the one place for signs, separators, digits and units."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from .._common.checks import is_number

UNKNOWN = "–"  # noqa: RUF001
MINUS = "\u2212"
_LEAST_WORTH = 1e-6  # smaller numbers are written with an exponent
_SIZES = ("bytes", "kB", "MB", "GB", "TB")


def count(value: Any) -> str:
    """Return a whole number with separators.

    >>> count(1664), count(-200), count(None)
    ('1,664', '−200', '–')
    """
    if not is_number(value):
        return UNKNOWN
    return f"{value:,.0f}".replace("-", MINUS)


def percent(value: Any) -> str:
    """Return a fraction in per cent, with the digits that matter close to 0 and 1.

    >>> percent(0.64), percent(0.9987), percent(0), percent(1)
    ('64 %', '99.87 %', '0 %', '100 %')
    >>> percent(0.0004), percent(0.00001), percent(0.99999)
    ('0.04 %', '<0.01 %', '>99.99 %')
    """
    if not is_number(value):
        return UNKNOWN
    margin = min(abs(value), abs(1 - value))
    if 0 < margin < 1e-4:
        return "<0.01 %" if value < 0.5 else ">99.99 %"
    if margin == 0 or margin >= 0.05:
        return f"{100 * value:.0f} %"
    digits = 1 if margin >= 0.005 else 2
    return f"{100 * value:.{digits}f} %"


def metric(value: Any) -> str:
    """Return a metric such as the AUC.

    >>> metric(0.83124), metric(None)
    ('0.8312', '–')
    """
    if not is_number(value):
        return UNKNOWN
    return f"{value:.4f}"


def signed(value: Any) -> str:
    """Return a difference of metrics with its sign.

    >>> signed(0.0012), signed(-0.0003), signed(-0.00001)
    ('+0.0012', '−0.0003', '0.0000')
    """
    if not is_number(value):
        return UNKNOWN
    text = f"{abs(value):.4f}"
    if float(text) == 0:
        return text
    return f"+{text}" if value > 0 else f"{MINUS}{text}"


def interval(bounds: Sequence[float]) -> str:
    """Return the two bounds of an interval.

    >>> interval([-0.0011, 0.0005])
    '−0.0011 to +0.0005'
    """
    return f"{signed(bounds[0])} to {signed(bounds[1])}"


def gate(value: Any) -> str:
    """Return a gate, from 0 to 1.

    >>> gate(0.99824), gate(6e-5)
    ('0.998', '0.000')
    """
    if not is_number(value):
        return UNKNOWN
    return f"{value:.3f}"


def score(value: Any) -> str:
    """Return a score of any size.

    >>> score(0.99824), score(1234.5), score(-0.0000123)
    ('0.998', '1,234', '−1.23e-05')
    """
    if not is_number(value):
        return UNKNOWN
    size = abs(value)
    if 0.01 <= size < 10 or size == 0:
        text = f"{size:.3f}"
    elif 1000 <= size < 1e6:
        text = f"{size:,.0f}"
    else:
        text = f"{size:.3g}"
    return f"{MINUS}{text}" if value < 0 else text


def worth(value: Any) -> str:
    """Return the worth of a field in nats: two digits, of which zeros at the end are left out.

    >>> worth(0.0312), worth(0.002), worth(-0.000034), worth(0), worth(3e-8)
    ('0.031', '0.002', '−0.000034', '0', '3e-08')
    """
    if not is_number(value):
        return UNKNOWN
    size = abs(value)
    if size == 0:
        return "0"
    text = f"{size:.1g}"
    if size >= _LEAST_WORTH:
        text = f"{size:.{_decimals(size)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{MINUS}{text}" if value < 0 else text


def worth_interval(value: Any, bounds: Sequence[float] | None) -> str:
    """Return the worth of a field with its interval, all with the decimals that the width allows.

    >>> worth_interval(0.03121, (0.0298, 0.0326)), worth_interval(-0.00003, (-0.0002, 0.00014))
    ('0.0312 (0.0298 to 0.0326)', '−0.00003 (−0.00020 to 0.00014)')
    >>> worth_interval(0.03121, None)
    '0.031'
    """
    if not is_number(value) or bounds is None:
        return worth(value)
    low, high = bounds
    width = high - low
    if width < _LEAST_WORTH:
        return f"{worth(value)} ({worth(low)} to {worth(high)})"
    digits = _decimals(width)
    texts = []
    for number in (value, low, high):
        rounded = round(number, digits) + 0.0  # turns -0.0 into 0.0
        texts.append(f"{rounded:.{digits}f}".replace("-", MINUS))
    return f"{texts[0]} ({texts[1]} to {texts[2]})"


def _decimals(size: float) -> int:
    """Return the decimals with which a positive number has two digits."""
    return max(0, 1 - math.floor(math.log10(size)))


def metric_interval(value: Any, bounds: Sequence[float] | None) -> str:
    """Return a metric with its interval.

    >>> metric_interval(0.83124, (0.8301, 0.8323)), metric_interval(0.83124, None)
    ('0.8312 (0.8301 to 0.8323)', '0.8312')
    """
    if bounds is None:
        return metric(value)
    return f"{metric(value)} ({metric(bounds[0])} to {metric(bounds[1])})"


def alike(values: Sequence[float]) -> Callable[[Any], str]:
    """Return a way to write numbers of one column: all with the same number of decimals.

    The largest of them then has three digits.

    >>> write = alike([0.00286, -0.00009])
    >>> write(0.00286), write(-0.00009), write(None)
    ('0.00286', '−0.00009', '–')
    """
    largest = max(map(abs, values), default=0.0)
    digits = 3
    if largest:
        digits = max(0, 2 - math.floor(math.log10(largest)))
    if not 0 < digits <= 8:
        return score

    def write(value: Any) -> str:
        if not is_number(value):
            return UNKNOWN
        return f"{value:.{digits}f}".replace("-", MINUS)

    return write


def size(value: Any) -> str:
    """Return bytes in a unit that fits.

    >>> size(29_372), size(512), size(3_250_000_000)
    ('29.4 kB', '512 bytes', '3.25 GB')
    """
    if not is_number(value):
        return UNKNOWN
    unit = 0
    while abs(value) >= 999.5 and unit + 1 < len(_SIZES):
        value /= 1000
        unit += 1
    amount = f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
    return f"{amount} {_SIZES[unit]}"


def milliseconds(value: Any) -> str:
    """Return a short time.

    >>> milliseconds(1.834), milliseconds(0.25)
    ('1.83 ms', '0.25 ms')
    """
    if not is_number(value):
        return UNKNOWN
    return f"{value:,.3g} ms"


def seconds(value: Any) -> str:
    """Return a long time.

    >>> seconds(4.21), seconds(125), seconds(7260)
    ('4.2 s', '2 min 5 s', '2 h 1 min')
    """
    if not is_number(value):
        return UNKNOWN
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def change(before: float, after: float) -> str:
    """Return a change in per cent of the value before.

    >>> change(64, 23), change(10, 10), change(2, 3)
    ('−64 %', 'unchanged', '+50 %')
    """
    if before == after:
        return "unchanged"
    by = 100.0
    if before:
        by = 100 * (after - before) / before
    sign = "+" if by > 0 else MINUS
    return f"{sign}{abs(by):.0f} %"


def anything(value: Any) -> str:
    """Return a setting of any type.

    >>> anything(0.001), anything([64, 32]), anything(None), anything(True), anything({"lr": 0.1})
    ('0.001', '64, 32', 'none', 'yes', 'lr 0.1')
    """
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if is_number(value):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(anything, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {anything(item)}" for key, item in value.items())
    return str(value)
