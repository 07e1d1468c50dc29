-- Counted units, as engine/algorithms/counted.py. No numbers, no parameters: every amount fits.
function algorithms.u(verb) return verb ~= 'current' and 0 end
