"""Lets tests of the folder's subfolders import `by_hand`: pytest adds this folder to the path."""
