"""pip's index settings as environment variables of uv, which reads neither pip.conf nor PIP_*.

A machine behind a private index often has only pip's settings. Names of both:
https://pip.pypa.io/en/stable/topics/configuration/ and https://docs.astral.sh/uv/reference/environment/
"""

import ast
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SECTIONS = ("global", "install", ":env:")
"""Sections of `pip config list` that apply to `pip install`, highest precedence last."""
_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "keyring-provider": ("UV_KEYRING_PROVIDER", " "),
}
"""For each pip setting: uv's variable, and the separator between several values."""
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")


_TRUE = ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class UvSettings:
    """What makes uv look where pip looks."""

    variables: Mapping[str, str]
    """To add to uv's environment."""
    options: tuple[str, ...] = ()
    """To add to its command line."""


def load_uv_settings(python: Path) -> UvSettings:
    """Return settings with which uv finds what `python -m pip` finds, beside those of the
    environment."""
    result = subprocess.run(  # noqa: S603
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return translate(read(result.stdout), os.environ)


def read(listing: str) -> dict[str, str]:
    """Return the settings in the output of `pip config list`, by name, as they apply to `pip
    install`."""
    settings: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listing.splitlines():
        key, equals, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if equals and section in settings:
            settings[section][name] = ast.literal_eval(value)
    return {name: value for section in _SECTIONS for name, value in settings[section].items()}


def translate(settings: Mapping[str, str], environ: Mapping[str, str]) -> UvSettings:
    """Translate pip's `settings` into uv's terms, without the variables that `environ` already
    has."""
    variables = {
        variable: separator.join(settings[name].split())
        for name, (variable, separator) in _VARIABLES.items()
        if name in settings
    }
    if "UV_INDEX" in variables:
        # pip takes the best version of all indexes; uv would stop at the first with the package.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if any(name in environ for name in _INDEX_VARIABLES):
        variables = {
            name: value for name, value in variables.items() if name not in _INDEX_VARIABLES
        }
    without_index = settings.get("no-index", "").lower() in _TRUE
    return UvSettings(
        {name: value for name, value in variables.items() if name not in environ},
        ("--no-index",) if without_index else (),
    )
