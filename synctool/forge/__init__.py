"""Pull requests on a hosting service: one protocol, a GitHub backend, a recorded backend."""
