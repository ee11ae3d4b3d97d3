"""A run as a thing: `RunFolder`, through which everybody reads what a run left."""
