"""Files and frames become encoded tasks."""
