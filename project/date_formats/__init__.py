"""The date formats of the admin, for FORMAT_MODULE_PATH."""
