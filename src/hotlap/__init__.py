"""hotlap: makes other people's PyTorch training faster, with proof.

This file is imported inside the user's training process too: keep it empty of work.
"""

__version__ = "0.1.0"
