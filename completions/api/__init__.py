"""The HTTP surface: one file per resource, and the DRF parts they share."""
