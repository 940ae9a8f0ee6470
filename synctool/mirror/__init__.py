"""The three-way engine in translated space, conflicts and their memory, the session that can stop and go on, verification from scratch."""
