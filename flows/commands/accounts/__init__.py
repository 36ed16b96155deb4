"""`fedcore budget`: accounts and ledgers of silos, and the register that they are in."""
