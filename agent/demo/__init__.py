"""`lakewarden demo`: two streaming queries collide on one Paimon table, and nothing is lost.

Nothing of the product depends on this package. It starts the product's own commands as a user would, each as a
process of its own, and judges what they left behind: the table row by row, and the log of who stopped when.
"""
