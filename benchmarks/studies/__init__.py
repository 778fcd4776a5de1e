"""Studies: each answers one question about a design, and runs when somebody asks it again."""
