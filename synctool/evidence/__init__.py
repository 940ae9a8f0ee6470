"""Records of what ran on which tree, and how far each still holds."""
