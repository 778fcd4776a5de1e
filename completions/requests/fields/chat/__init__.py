"""The fields of a chat's body: messages with their calls, and tools."""
