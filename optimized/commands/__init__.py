"""What the subcommands of the command line do, one file each. Imported only when its subcommand runs."""
