"""`lakewarden demo`: two streaming queries write one Paimon table, and no row is lost.

No other package depends on this one. The demo starts the product's commands as a user would, each in its own process. At the
end it compares the table with the input row by row.
"""
