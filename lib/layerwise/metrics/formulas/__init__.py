"""Formulas behind metrics: functions on arrays, without files or configs."""
