"""Code that the handlers of several APIs share: request contexts, checks and conversions of one subject each."""
