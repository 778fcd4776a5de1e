"""How the admin writes dates; settings name this package."""
