"""How applications render documents, memories and tool results into strings: found, never rewritten (floor 2). Pure."""
