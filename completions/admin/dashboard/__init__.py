"""The start page of the admin: figures and charts."""
