"""Commands: parse, call, print. No logic lives here."""
