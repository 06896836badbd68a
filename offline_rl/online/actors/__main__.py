"""`python -m offline_rl.online.actors`: see `offline_rl.online.actors.actor`."""

from offline_rl.online.actors.actor import main

if __name__ == "__main__":
    raise SystemExit(main())
