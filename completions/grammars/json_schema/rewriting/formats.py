"""The values of `format`, as patterns: one table with the sources.

A format that is not in the table says nothing, and is reported by the walk over the keywords.
"""

from collections.abc import Mapping

from completions.grammars.json_schema.rewriting.schema_algebra import restrict_texts
from completions.grammars.schema.keywords import SchemaObject

NATIVE = frozenset(("duration", "ipv4", "uuid", "uri", "unknown"))
"""What llguidance enforces itself, with the same meaning as here."""

# RFC 3339, 5.6. February has a 29th day in leap years only.
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP}-02-29)"
)
_OFFSET = r"[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"


def _make_leap_second(hour: int) -> str:
    """Return the leap seconds whose local time has this hour: 23:59:60 in UTC, so that the offset
    follows from the time. Only offsets of whole quarters of an hour, as all zones have today."""
    east, west = f"\\+{hour:02}", f"-{23 - hour:02}"
    minutes = {
        "59": rf"(?:\+{(hour + 1) % 24:02}:00|{west}:00)",
        "14": rf"(?:{east}:15|{west}:45)",
        "29": rf"(?:{east}:30|{west}:30)",
        "44": rf"(?:{east}:45|{west}:15)",
    }
    return rf"{hour:02}:(?:{'|'.join(f'{m}:60{_FRACTION}{z}' for m, z in minutes.items())})"


_TIME = (
    rf"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[zZ]|{_OFFSET})"
    rf"|23:59:60{_FRACTION}[zZ]|{'|'.join(map(_make_leap_second, range(24)))})"
)
# RFC 3339, appendix A.
_DURATION_TIME = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)"
# RFC 1123, 2.1, with RFC 1034, 3.5.


def _make_label(edge: str, inner: str, first: str = "") -> str:
    """Return a label of up to 63 characters that begins with `first`, by default `edge`, and ends
    with `edge`. RFC 5890, 2.3.1: one with hyphens as its third and fourth character is reserved, or
    an A-label (xn--), whose Punycode no regular expression can check."""
    long = rf"{inner}(?:{edge}{inner}{{0,59}}{edge}|-{edge}(?:{inner}{{0,58}}{edge})?)"
    return rf"{first or edge}(?:{inner}?{edge}|{long})?"


MAX_HOSTNAME = 253
"""Characters, as RFC 1034, 3.1, allows 255 octets in the form with lengths."""
_LABEL = _make_label("[a-zA-Z0-9]", r"[a-zA-Z0-9\-]")
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_WIDE = r"[^\x00-\x7f]"
# RFC 5890, 2.3.2.3: labels of ASCII, or of characters beyond it. Without separators, what RFC 5892
# disallows by name (2.6), and what it allows beside certain neighbours only (appendix A).
_NOT_ALONE = (
    r"\x00-\x7f\u00b7\u0375\u05f3\u05f4\u0640\u0660-\u0669\u06f0-\u06f9\u07fa\u200c\u200d"
    r"\u3002\u302e\u302f\u3031-\u3035\u303b\u30fb\uff0e\uff61"
)
_VIRAMA = (
    r"[\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d3b\u0d3c\u0d4d\u0dca\u0e3a\u0eba\u0f84"
    r"\u1039\u103a\u1714\u1715\u1734\u17d2\u1a60\u1b44\u1baa\u1bab\u1bf2\u1bf3\u2d7f\ua806\ua82c"
    r"\ua8c4\ua953\ua9c0\uaaf6\uabed]"
)
_JAPANESE = (
    r"[\u3005\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fd-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"
)
_GREEK = r"[\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03e1\u03f0-\u03ff]"
# Appendix A.3 to A.7: what a label may begin with, as one part of it; letters only as neighbours.
_MIDDLE_DOT = r"l(?:\u00b7l)+"
_HEBREW = r"[\u05d0-\u05ea\u05ef-\u05f2]"
_PAIR = rf"\u0375{_GREEK}|{_HEBREW}[\u05f3\u05f4]|\u30fb{_JAPANESE}|{_JAPANESE}\u30fb"
_PART = rf"[a-zA-Z0-9]|[^{_NOT_ALONE}]|{_MIDDLE_DOT}|{_PAIR}|{_VIRAMA}[\u200c\u200d]"  # A.1, A.2
# RFC 5891, 4.2.3.2: no combining mark comes first. No hyphen follows a pair: it could be the third
# character.
_BEGINNING = rf"(?:[a-zA-Z0-9]|[^{_NOT_ALONE}\p{{M}}]|{_MIDDLE_DOT})"
_WIDE_LABEL = (
    rf"(?:{_make_label(f'(?:{_PART})', f'(?:{_PART}|-)', _BEGINNING)}"
    rf"|(?:{_PAIR})(?:(?:{_PART})(?:(?:{_PART}|-){{0,58}}(?:{_PART}))?)?)"
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
# RFC 5321, 4.1.2 (Mailbox), and RFC 6531 for characters beyond ASCII.
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_ADDRESS = rf"\[(?:{_IPV4}|IPv6:{_IPV6})\]"
_EMAIL = rf"(?:{_ATOM}+(?:\.{_ATOM}+)*|{_QUOTED})@(?:{_HOSTNAME}|{_ADDRESS})"
_WIDE_ATOM = rf"(?:{_ATOM}|{_WIDE})"
_WIDE_QUOTED = rf'"(?:[ !#-\[\]-~]|{_WIDE}|\\[ -~])*"'
_WIDE_EMAIL = (
    rf"(?:{_WIDE_ATOM}+(?:\.{_WIDE_ATOM}+)*|{_WIDE_QUOTED})@(?:{_WIDE_HOSTNAME}|{_ADDRESS})"
)


def _make_uri(wide: str, private: str = "", *, relative: bool) -> str:
    """Return the pattern of RFC 3986, appendix A, and RFC 3987, 2.2, where `wide` adds characters
    beyond ASCII, and `private` more to queries."""
    percent = "%[0-9a-fA-F]{2}"
    plain = rf"a-zA-Z0-9\-._~!$&'()*+,;={wide}"
    letters, no_colon = rf"(?:[{plain}:@]|{percent})", rf"(?:[{plain}@]|{percent})"
    user, name = rf"(?:[{plain}:]|{percent})*", rf"(?:[{plain}]|{percent})*"
    host = rf"(?:\[(?:{_IPV6}|[vV][0-9a-fA-F]+\.[{plain}:]+)\]|{name})"
    authority = rf"(?:{user}@)?{host}(?::[0-9]*)?"
    absolute = rf"/(?:{letters}+(?:/{letters}*)*)?"
    rest = rf"(?:\?(?:{letters}|[/?{private}])*)?(?:#(?:{letters}|[/?])*)?"
    beginning = rf"//{authority}(?:/{letters}*)*|{absolute}"
    uri = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{beginning}|{letters}+(?:/{letters}*)*|){rest}"
    if not relative:
        return uri
    return rf"(?:{uri}|(?:{beginning}|{no_colon}+(?:/{letters}*)*|){rest})"


_WIDE_RANGE = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    f"{chr(plane << 16 | first)}-{chr(plane << 16 | 0xFFFD)}"
    for plane, first in [*((plane, 0) for plane in range(1, 14)), (14, 0x1000)]
)
_PRIVATE_RANGE = r"\ue000-\uf8ff" + "".join(
    f"{chr(plane << 16)}-{chr(plane << 16 | 0xFFFD)}" for plane in (15, 16)
)
# RFC 6570, 2.
_VARIABLE = r"(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[a-zA-Z0-9_]|%[0-9a-fA-F]{2}))*"
_VARSPEC = rf"{_VARIABLE}(?::[1-9][0-9]{{0,3}}|\*)?"
_URI_TEMPLATE = (
    r"(?:[!#$&'(-;=?-\[\]_a-z~]|[^\x00-\x9f]|%[0-9a-fA-F]{2}"
    rf"|\{{[+#./;?&=,!@|]?{_VARSPEC}(?:,{_VARSPEC})*\}})*"
)
# RFC 6901, 3, and draft-bhutton-relative-json-pointer-00, 3.
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_RELATIVE_POINTER = rf"(?:0|[1-9][0-9]*)(?:[+\-][1-9][0-9]*)?(?:#|{_POINTER})"


_GROUP_NAME = "[a-zA-Z_$][a-zA-Z0-9_$]*"


def _make_regular_expression(levels: int) -> str:
    """Return the pattern of ECMA-262, 22.2.1, with groups nested up to `levels`, and without
    control characters.

    With them llguidance would also accept a lone backslash.
    """
    escape = r"\\(?:[dDsSwWtrnvf0]|[\^$\\.*+?()\[\]{}|/\-]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}"
    escape += rf"|c[a-zA-Z]|k<{_GROUP_NAME}>)"
    inside = rf"(?:[^\x00-\x1f\\\]\[]|{escape}|\\b)"
    atom = rf"(?:[^\x00-\x1f\^$\\.*+?()\[\]{{}}|]|\.|{escape}|\[\^?{inside}*\])"
    count = r"(?:[*+?]\??|\{[0-9]+(?:,[0-9]*)?\}\??)?"
    assertion = r"(?:\^|\$|\\[bB])"
    if levels:
        inner = _make_regular_expression(levels - 1)
        atom = rf"(?:{atom}|\((?:\?(?::|<{_GROUP_NAME}>))?{inner}\))"
        assertion = rf"(?:{assertion}|\(\?<?[=!]{inner}\))"
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
    "uri": _make_uri("", relative=False),
    "uri-reference": _make_uri("", relative=True),
    "iri": _make_uri(_WIDE_RANGE, _PRIVATE_RANGE, relative=False),
    "iri-reference": _make_uri(_WIDE_RANGE, _PRIVATE_RANGE, relative=True),
    # RFC 4122, 3.
    "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": _RELATIVE_POINTER,
    "regex": _make_regular_expression(2),
}


def get_pattern(name: object) -> str:
    """Return a pattern of the texts of a format; empty if the format is unknown."""
    pattern = PATTERNS.get(name, "") if isinstance(name, str) else ""
    return f"^(?:{pattern})$" if pattern else ""


def write_format(node: SchemaObject) -> SchemaObject | None:
    """Return a schema with a pattern in place of a format that llguidance lacks; None if it has
    none."""
    name = node.get("format")
    if name in NATIVE or not (pattern := get_pattern(name)):
        return None
    change = {key: value for key, value in node.items() if key != "format"}
    # Not for idn-hostname: a length beside its large classes takes llguidance beyond its limit of
    # states within some 40 % of random texts, which end there.
    if name == "hostname":
        change["maxLength"] = min(change.get("maxLength", MAX_HOSTNAME), MAX_HOSTNAME)
    if "pattern" in change:
        change["allOf"] = [*change.get("allOf", ()), restrict_texts(node, pattern)]
    else:
        change["pattern"] = pattern
    return change
