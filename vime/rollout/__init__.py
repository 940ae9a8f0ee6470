"""From prompts to scored samples: the generate loop, filters, rewards, evaluation, and the hooks through which users replace any of it."""
