"""The OpenAPI document: requests from the serializers, the rest from one table of operations."""
