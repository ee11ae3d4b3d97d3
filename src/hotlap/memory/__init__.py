"""What memory is used for: at the peak, and what stays behind."""
