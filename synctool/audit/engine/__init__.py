"""What the pinned engine accepts: its arguments, routes, request models, modules and names, read from its source without importing it."""
