"""What metrics are made of: functions on arrays that know nothing of files or configs."""
