"""Usage snapshots, rolled up from the counts of the stores, and denials.

A store counts usage in the same step that allows a request. `rollup` adds the counts to hourly and daily snapshots,
and `reading` sums them up. `denial_counter` counts rejections, `denied` reads them, and `pruning` deletes old rows.
`evaluations` counts the decisions of candidates and of policies in shadow mode, and `totals` reads them.
"""
