"""Rules: one module per analysis, each a fold over the ordered events of one key."""
