"""What Ray runs, with Ray (``make test-ray``) and, all that needs none, without."""
