"""Processes of this host: shims, ranks, launchers, servers, installers, orphans."""
