"""Fields of the Responses and Messages APIs, read as what a chat has in their place."""
