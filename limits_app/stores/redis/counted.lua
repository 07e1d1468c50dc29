-- Counted units, as engine/algorithms/counted.py. No numbers, no parameters: every amount fits.
formats.u, tags.u = '', 'I3'

function current.u() return false end

function algorithms.u() return 0 end
