"""What both tiers agree on. Imports nothing of Quire."""
