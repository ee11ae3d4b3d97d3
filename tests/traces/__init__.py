"""Reading traces."""
