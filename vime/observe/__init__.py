"""What a run tells: metrics file, console, trackers, reward curve, and the life of a sample."""
