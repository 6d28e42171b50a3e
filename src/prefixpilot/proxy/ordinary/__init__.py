"""Ordinary requests, that know nothing of us: what an application rendered is ordered and de-duplicated in place."""
