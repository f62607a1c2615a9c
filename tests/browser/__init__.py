"""Tests that drive Chromium against a real server."""
