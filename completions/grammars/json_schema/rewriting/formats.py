"""The values of `format`, as patterns: one table with the sources.

A format that is not in the table says nothing, and is reported by the walk over the keywords.
"""

from collections.abc import Mapping
from typing import Any

NATIVE = frozenset(
    ("time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
"""What llguidance enforces itself, with the same meaning as here."""

# RFC 3339, 5.6. February has a 29th day in leap years only.
_LEAP = (
    r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
)  # fmt: skip
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?"
    r"(?:[zZ]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
# RFC 3339, appendix A.
_DURATION_TIME = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)"
# RFC 1123, 2.1, with RFC 1034, 3.5.
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
# RFC 5890, 2.3.2.3: labels of ASCII, or of characters beyond it.
_WIDE = r"[^\x00-\x7f]"
_WIDE_LABEL = (
    rf"(?:[a-zA-Z0-9]|{_WIDE})(?:(?:[a-zA-Z0-9\-]|{_WIDE}){{0,61}}(?:[a-zA-Z0-9]|{_WIDE}))?"
)
_WIDE_HOSTNAME = rf"{_WIDE_LABEL}(?:[.\u3002\uff0e\uff61]{_WIDE_LABEL})*"
# RFC 2673, 3.2, and RFC 4291, 2.2.
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = r"[0-9a-fA-F]{1,4}"
_LAST = rf"(?:{_HEX}:{_HEX}|{_IPV4})"
_IPV6 = (
    rf"(?:(?:{_HEX}:){{6}}{_LAST}|::(?:{_HEX}:){{5}}{_LAST}|(?:{_HEX})?::(?:{_HEX}:){{4}}{_LAST}"
    rf"|(?:(?:{_HEX}:){{0,1}}{_HEX})?::(?:{_HEX}:){{3}}{_LAST}"
    rf"|(?:(?:{_HEX}:){{0,2}}{_HEX})?::(?:{_HEX}:){{2}}{_LAST}"
    rf"|(?:(?:{_HEX}:){{0,3}}{_HEX})?::{_HEX}:{_LAST}|(?:(?:{_HEX}:){{0,4}}{_HEX})?::{_LAST}"
    rf"|(?:(?:{_HEX}:){{0,5}}{_HEX})?::{_HEX}|(?:(?:{_HEX}:){{0,6}}{_HEX})?::)"
)
# RFC 5321, 4.1.2 (Mailbox, without quoted strings), and RFC 6531 for characters beyond ASCII.
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]"
_EMAIL = rf"{_ATOM}+(?:\.{_ATOM}+)*@(?:{_HOSTNAME}|\[{_IPV4}\])"
_WIDE_ATOM = rf"(?:{_ATOM}|{_WIDE})"
_WIDE_EMAIL = rf"{_WIDE_ATOM}+(?:\.{_WIDE_ATOM}+)*@(?:{_WIDE_HOSTNAME}|\[{_IPV4}\])"


def _uri(wide: str, *, relative: bool) -> str:
    """RFC 3986, appendix A; RFC 3987, 2.2, where `wide` adds characters beyond ASCII."""
    percent = "%[0-9a-fA-F]{2}"
    plain = rf"a-zA-Z0-9\-._~!$&'()*+,;={wide}"
    letters, no_colon = rf"(?:[{plain}:@]|{percent})", rf"(?:[{plain}@]|{percent})"
    user, name = rf"(?:[{plain}:]|{percent})*", rf"(?:[{plain}]|{percent})*"
    host = rf"(?:\[(?:{_IPV6}|v[0-9a-fA-F]+\.[{plain}:]+)\]|{name})"
    authority = rf"(?:{user}@)?{host}(?::[0-9]*)?"
    absolute = rf"/(?:{letters}+(?:/{letters}*)*)?"
    rest = rf"(?:\?(?:{letters}|[/?])*)?(?:#(?:{letters}|[/?])*)?"
    beginning = rf"//{authority}(?:/{letters}*)*|{absolute}"
    uri = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{beginning}|{letters}+(?:/{letters}*)*|){rest}"
    if not relative:
        return uri
    return rf"(?:{uri}|(?:{beginning}|{no_colon}+(?:/{letters}*)*|){rest})"


_WIDE_RANGE = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
# RFC 6570, 2.
_VARIABLE = r"(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2}))*"
_VARSPEC = rf"{_VARIABLE}(?::[1-9][0-9]{{0,3}}|\*)?"
_URI_TEMPLATE = (
    r"(?:[!#$&(-;=?-\[\]_a-z~]|[^\x00-\x9f]|%[0-9a-fA-F]{2}"
    rf"|\{{[+#./;?&=,!@|]?{_VARSPEC}(?:,{_VARSPEC})*\}})*"
)
# RFC 6901, 3, and draft-bhutton-relative-json-pointer-00, 3.
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_RELATIVE_POINTER = rf"(?:0|[1-9][0-9]*)(?:[+\-][1-9][0-9]*)?(?:#|{_POINTER})"


def _regular_expression(levels: int) -> str:
    """ECMA-262, 22.2.1, with groups nested up to some levels, and without control characters.

    With them llguidance would also accept a lone backslash.
    """
    escape = r"\\(?:[dDsSwWtrnvf0]|[\^$\\.*+?()\[\]{}|/\-]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
    inside = rf"(?:[^\x00-\x1f\\\]\[]|{escape}|\\b)"
    atom = rf"(?:[^\x00-\x1f\^$\\.*+?()\[\]{{}}|]|\.|{escape}|\[\^?{inside}*\])"
    count = r"(?:[*+?]\??|\{[0-9]+(?:,[0-9]*)?\}\??)?"
    assertion = r"(?:\^|\$|\\[bB])"
    if levels:
        inner = _regular_expression(levels - 1)
        atom = rf"(?:{atom}|\((?:\?:)?{inner}\))"
        assertion = rf"(?:{assertion}|\(\?[=!]{inner}\))"
    term = rf"(?:{assertion}|{atom}{count})"
    return rf"(?:{term}|\|)*"


PATTERNS: Mapping[str, str] = {
    "date-time": f"{_DATE}[tT]{_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _WIDE_EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _WIDE_HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _uri("", relative=False),
    "uri-reference": _uri("", relative=True),
    "iri": _uri(_WIDE_RANGE, relative=False),
    "iri-reference": _uri(_WIDE_RANGE, relative=True),
    # RFC 4122, 3.
    "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": _RELATIVE_POINTER,
    "regex": _regular_expression(2),
}


def pattern_of(name: Any) -> str:
    """A pattern of the texts of a format; empty if the format is unknown."""
    found = PATTERNS.get(name, "") if isinstance(name, str) else ""
    return f"^(?:{found})$" if found else ""


def written(node: dict[str, Any]) -> dict[str, Any] | None:
    """A schema with a pattern in place of a format that llguidance lacks; None if it has none."""
    name = node.get("format")
    if name in NATIVE or not (pattern := pattern_of(name)):
        return None
    change = {key: value for key, value in node.items() if key != "format"}
    if "pattern" in change:
        text = {"type": "string", "pattern": pattern}
        texts = text if node.get("type") == "string" else {"anyOf": [text, {"type": _OTHERS}]}
        change["allOf"] = [*change.get("allOf", ()), texts]
    else:
        change["pattern"] = pattern
    return change


_OTHERS = ["null", "boolean", "number", "array", "object"]
