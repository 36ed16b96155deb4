"""`fedcore budget`: ledgers of silos, their accounts, and the operator's register of both."""
