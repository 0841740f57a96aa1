"""Options that several commands share, and the registration of commands with typer."""
