"""Table 1 of Noble, Bellet and Dieuleveut 2022 (spec dp-scaffold, 7.6): rounds that the paper's formula allows."""

LOCAL_STEPS = (1, 5, 10, 20, 40)
ROUNDS = {
    10: (542, 488, 428, 324, 72),
    20: (545, 502, 451, 352, 83),
    40: (546, 505, 457, 360, 86),
    80: (546, 506, 458, 362, 87),
    160: (546, 506, 458, 362, 87),
}
"""T at epsilon 3, l = 0.05, s = 0.2, M = 100 and 4000 training records, by sigma_g, for each of LOCAL_STEPS."""
