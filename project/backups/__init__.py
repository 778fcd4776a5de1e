"""Backups: one archive of the database, the files and the secrets of an installation.

An archive is a tar with the database, `secrets.json`, the folder `files/` and, as its last member,
`manifest.json`: what made it, and the SHA-256 of every other member. An archive without a manifest
was cut off.
"""


class BackupError(Exception):
    """Nothing was changed. The message says what to do."""
