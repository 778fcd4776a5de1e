"""Formats figures for people, in the same way on every page."""

from datetime import datetime
from decimal import Decimal

from django.utils.html import format_html
from django.utils.safestring import SafeString

NONE = "\N{EN DASH}"
"""Shown for what is unknown or absent."""

_UNITS = ((1, ""), (10**3, "k"), (10**6, "M"), (10**9, "G"), (10**12, "T"))
_TONES = {
    "completed": "good",
    "active": "good",
    "serving": "good",
    "loaded": "good",
    "failed": "bad",
    "revoked": "bad",
    "unreachable": "bad",
    "no worker": "bad",
    "running": "info",
    "in_progress": "info",
    "validating": "info",
    "finalizing": "info",
    "cancelled": "warn",
    "cancelling": "warn",
    "expired": "warn",
    "draining": "warn",
    "drained": "warn",
    "silent": "warn",
    "suspended": "warn",
}


def format_compact(number: float | None) -> str:
    """Format 12345 as 12.3k."""
    if number is None:
        return NONE
    text = ""
    for size, unit in _UNITS:
        scaled = number / size
        text = f"{scaled:.3g}{unit}" if abs(scaled) < 100 else f"{scaled:.0f}{unit}"
        if abs(round(scaled)) < 1000:  # as rounded: 999,999 is 1M
            break
    return text


def format_exact(number: int | None) -> str:
    """Format 12345 as 12,345."""
    return NONE if number is None else f"{number:,}"


def format_money(nanos: int | None) -> str:
    """Format billionths of the operator's currency; amounts below 1 get four decimals."""
    if nanos is None:
        return NONE
    amount = Decimal(nanos) / 10**9
    if amount == 0 or amount >= 1:
        return f"{amount:,.2f}"
    return f"{amount:.4f}" if amount >= Decimal("0.0001") else "< 0.0001"


def format_milliseconds(value: float | None) -> str:
    return format_seconds(None if value is None else value / 1000)


def format_seconds(value: float | None) -> str:
    """Format a duration in seconds: 840 ms, 1.25 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if value is None:
        return NONE
    if value < 0.9995:
        return f"{1000 * value:.0f} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    whole = round(value)
    for size, unit, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {part}" if rest else f"{whole // size} {unit}"
    return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"


def format_ago(then: datetime | None, now: datetime) -> str:
    """Format a moment as `5 min ago` or `in 5 min`."""
    if then is None:
        return NONE
    gone = (now - then).total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if abs(gone) >= size:
            count = int(abs(gone) // size)
            return f"{count} {unit} ago" if gone > 0 else f"in {count} {unit}"
    return "now"


def format_share(part: float, whole: float) -> str:
    """Format a share as a percentage; NONE if `whole` is 0."""
    if not whole:
        return NONE
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"


def format_change(now: float, before: float) -> str:
    """Return the change from the previous period; empty if that period had almost none."""
    if now > 10 * before:
        return ""
    return f"{round(100 * (now - before) / before):+d} %" if before else ""


def format_size(count: float | None) -> str:
    """Format a number of bytes: 3.2 MiB."""
    if count is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def make_label(state: str, text: str = "") -> SafeString:
    tone = _TONES.get(state, "plain")
    return format_html(
        '<span class="q-label q-{}">{}</span>', tone, text or state.replace("_", " ")
    )


def make_code(text: str, link: str = "") -> SafeString:
    """Render an id in a monospaced font; the style sheet shortens it."""
    element = format_html('<code class="q-id" title="{}">{}</code>', text, text)
    return format_html('<a class="q-link" href="{}">{}</a>', link, element) if link else element


def make_two_lines(first: str, second: str) -> SafeString:
    """Render a text above a fainter one."""
    return format_html('<span class="q-two">{}<small>{}</small></span>', first, second)
