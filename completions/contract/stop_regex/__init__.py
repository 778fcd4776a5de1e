"""Stop regexes: validated in the web tier, followed by the engine. No dependencies."""
