"""Events that an organization's own server receives: signed, retried and logged."""
