"""HTTP as it stands on the wire, towards the client and towards the engine. Knows nothing of prompts."""
