"""Stop regexes: judged in the web tier, followed by the engine. No dependencies."""
