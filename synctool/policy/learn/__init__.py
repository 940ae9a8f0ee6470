"""Learns a first policy from two trees and what is known of their histories: pairs of paths, vocabulary, ownership, and the file's text.

Pure: values in, values out; ``cli/init.py`` reads the repositories. Nothing here decides for anyone: each learned rule says what it rests on.
"""
