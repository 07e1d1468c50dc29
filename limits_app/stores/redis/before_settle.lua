local settle = {}
