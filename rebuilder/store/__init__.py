"""The bookkeeping: one module per noun."""
