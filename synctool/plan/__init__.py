"""From a range of upstream history to a plan: what each change is, whether it is taken, and why. Pure, over values that git/ read."""
