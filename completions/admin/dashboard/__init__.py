"""The start page of the admin."""
