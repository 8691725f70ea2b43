"""`python -m atlas` is `atlas`; `torchrun -m atlas run ...` is the same in several processes."""

from atlas.cli import main

if __name__ == "__main__":
    main()
