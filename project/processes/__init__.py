"""The child processes of `manage.py up`: supervisor, services, logs, the embedded Valkey."""
