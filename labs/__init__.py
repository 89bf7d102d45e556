"""Where you work: one folder a day, one file a lesson."""
