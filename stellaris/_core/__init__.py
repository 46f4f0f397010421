"""Parts that every layer uses: argument checks, eager calls, order statistics, descriptions of settings, extras."""
