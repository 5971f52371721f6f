"""What the metrics are made of: plain functions on arrays that know nothing of files or configs."""
