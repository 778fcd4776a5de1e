"""How all rooms use the database: rows in parts, many updates at once, connections given back."""
