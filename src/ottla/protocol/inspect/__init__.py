"""Messages explained byte by byte, without the secrets in them."""
