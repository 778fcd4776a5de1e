"""What one request or page costs the web tier."""
