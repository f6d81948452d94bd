"""Write the smaller model."""
