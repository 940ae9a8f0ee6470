"""From slime to vime: what slime's names are called here (`names`), launch scripts followed without running them and rewritten."""
