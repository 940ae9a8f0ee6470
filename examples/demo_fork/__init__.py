"""A small upstream and its translated fork, generated; and the story of one sync between them."""
