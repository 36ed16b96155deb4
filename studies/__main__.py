"""The program of the studies: `python -m studies list | run NAME | compare NAME`."""

from flows.commands.app import main  # before NumPy is loaded: it sets the threads of BLAS
from studies.commands import app

if __name__ == "__main__":
    main(app, "python -m studies")
