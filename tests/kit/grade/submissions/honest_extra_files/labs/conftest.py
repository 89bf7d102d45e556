raise RuntimeError('nobody reads this')
