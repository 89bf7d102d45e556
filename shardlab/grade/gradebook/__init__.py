"""What grading found out, and the files it is handed out in: gradebooks, feedback, the class report."""
