"""`python -m lakewarden.agent …` is `lakewarden …`."""

from lakewarden.agent.cli.entry import main

if __name__ == "__main__":
    main()
