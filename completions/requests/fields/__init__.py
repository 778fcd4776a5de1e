"""The fields of request bodies by topic: each field's type, range, default and documentation."""
