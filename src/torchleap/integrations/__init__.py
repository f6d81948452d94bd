"""Recipes for public zoos of models: each module has one function, `attach_to(model, ...)`.

It finds the places where the fields pass, with their names and widths, from the configuration of
the zoo, and returns a `Plugin`. Importing a recipe does not import its zoo.
"""
