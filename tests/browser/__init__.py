"""What is looked at in a browser: `make test-browser`."""
